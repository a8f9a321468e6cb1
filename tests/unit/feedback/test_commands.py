"""The commands, as a person types them."""

import csv
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedback.__main__ import main
from feedback.annotators import LabelParams, MissingJudgmentsError
from feedback.judgments import read_judgments, to_lines
from feedback.people import PeopleAnnotator
from preferences.reader import read_rows
from preferences.records import pair_id
from preferences.schemas import JUDGMENTS

Command = Any


@pytest.fixture
def run(desk: Any, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on the desk's store; returns (exit code, stdout, stderr)."""
    store = desk.sql("PRAGMA database_list")[0][2]

    def command(name: str, *arguments: object) -> tuple[int, str, str]:
        code = main([name, "--store", str(store), *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def write_comparisons(path: Path, pairs: Any) -> Path:
    rows = [
        {
            "pair_id": pair.pair_id,
            "round": pair.round,
            "prompt_id": "p",
            "prompt": pair.prompt,
            "response_a": pair.response_a,
            "response_b": pair.response_b,
            "policy_a": "hash of one",
            "policy_b": "hash of another",
        }
        for pair in pairs
    ]
    path.write_text(to_lines(rows), encoding="utf-8")
    return path


def test_a_round_goes_from_publish_to_export(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    comparisons = write_comparisons(tmp_path / "c.jsonl", make_pairs(5))
    code, out, _ = run("publish", "--round", "r1", "--comparisons", comparisons)
    assert (code, out) == (0, "round r1: 5 pairs added, 0 kept, 0 removed\n")
    code, token, _ = run("token", "ana")
    assert (code, len(token.strip()) >= 40) == (0, True)
    assert run("status", "--round", "r1")[0] == 5
    for _ in range(5):
        desk.answer("ana", "a")
    code, out, _ = run("status", "--round", "r1")
    assert code == 0
    assert "5 of 5 pairs settled, complete" in out
    assert run("export", "--round", "r1", "--out", tmp_path / "j.jsonl")[0] == 0
    judgments = read_judgments(tmp_path / "j.jsonl")
    assert [one.choice for one in judgments] == ["a"] * 5
    assert {one.kind for one in judgments} == {"human"}
    assert "hash of" not in (tmp_path / "j.jsonl").read_text(encoding="utf-8")
    assert desk.sql("SELECT count(*) FROM events WHERE kind = 'export'") == [(1,)]


def test_the_log_says_who_took_what_out(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(2))
    who = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    run("export", "--round", "r1", "--format", "csv", "--out", tmp_path / "table.csv")
    run("backup", tmp_path / "copy.db")
    log = desk.sql(
        "SELECT kind, round, detail FROM events WHERE kind IN ('export', 'backup') "
        "ORDER BY event_id"
    )
    assert [(kind, key, json.loads(str(detail))) for kind, key, detail in log] == [
        ("export", "r1", {"form": "csv", "n": 0, "file": "table.csv", "by": who}),
        ("backup", None, {"file": "copy.db", "n": 0, "by": who}),
    ]


def test_status_says_what_a_round_waits_for_and_how_to_open_the_page(
    run: Command, desk: Any, make_pairs: Any
) -> None:
    desk.publish(make_pairs(100), overlap=2)
    desk.hire("ana", "ben")
    for _ in range(63):
        desk.answer("ana", "a")
    code, out, err = run("status", "--round", "r1")
    assert code == 5
    assert "waits for 137 of 200 judgments" in out
    assert (
        "round r1 waits for 137 of 200 judgments; label at http://127.0.0.1:8765 (`make annotate`"
        in err
    )


def test_publish_refuses_pairs_of_another_round(
    run: Command, make_pairs: Any, tmp_path: Path
) -> None:
    comparisons = write_comparisons(tmp_path / "c.jsonl", make_pairs(2, key="r2"))
    code, _, err = run("publish", "--round", "r1", "--comparisons", comparisons)
    assert code == 2
    assert "is of round 'r2'" in err


def test_gold_items_are_published_and_refused_where_they_are_pairs_of_a_round(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    path = tmp_path / "gold.jsonl"
    row = {"prompt": "p", "response_a": "good", "response_b": "bad", "gold": "a"}
    path.write_text(to_lines([row]), encoding="utf-8")
    assert run("publish", "--gold", path)[0] == 0
    assert desk.sql("SELECT gold FROM pairs") == [("a",)]
    (pair,) = make_pairs(1)
    desk.publish([pair])
    row = {"prompt": pair.prompt, "response_a": pair.response_a}
    row |= {"response_b": pair.response_b, "gold": "b"}
    path.write_text(to_lines([row]), encoding="utf-8")
    code, _, err = run("publish", "--gold", path)
    assert (code, "already belongs to round r1" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("publish",), "expected --round or --gold"),
        (("publish", "--round", "r9"), "data/rounds/r9/comparisons.jsonl: no such file"),
        (("status", "--round", "r9"), "round r9 has not been published"),
        (("export", "--round", "r9", "--out", "x"), "round r9 has not been published"),
        (("import", "nowhere.jsonl", "--round", "r1"), "nowhere.jsonl: no such file"),
        (("token", "x" * 65), "annotator is"),
        (("token", "nobody", "--resume"), "no annotator 'nobody'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    run: Command, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_a_store_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "not.db"
    path.write_bytes(b"this is no database at all" * 100)
    assert main(["status", "--store", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"store {path}" in error
    assert error.count("\n") == 1


def test_a_store_that_does_not_answer_is_named_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("psycopg")
    assert main(["status", "--store", "postgresql://labels:secret@127.0.0.1:1/labels"]) == 2
    error = capsys.readouterr().err
    assert "store postgresql://labels:***@127.0.0.1:1/labels: " in error
    assert "secret" not in error


@pytest.mark.parametrize(
    "command", ["serve", "publish", "token", "status", "export", "import", "backup", "restore"]
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "--store" in capsys.readouterr().out


def test_judgments_survive_export_and_import_into_another_store(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    pairs = make_pairs(6)
    desk.publish(pairs, overlap=2)
    desk.hire("ana", "ben")
    for choice in ("a", "b", "tie", "both_bad", "right", "left"):
        desk.answer("ana", choice)
        desk.answer("ben", choice)
    file = tmp_path / "j.jsonl"
    run("export", "--round", "r1", "--out", file)
    other = tmp_path / "other.db"
    comparisons = write_comparisons(tmp_path / "c.jsonl", pairs)
    main(["publish", "--store", str(other), "--round", "r1", "--comparisons", str(comparisons)])
    assert main(["import", "--store", str(other), "--round", "r1", str(file)]) == 0
    again = tmp_path / "again.jsonl"
    main(["export", "--store", str(other), "--round", "r1", "--out", str(again)])
    strip = [(one.pair_id, one.annotator_id, one.choice, one.kind) for one in read_judgments(file)]
    assert len(strip) == 12
    assert strip == [
        (one.pair_id, one.annotator_id, one.choice, one.kind) for one in read_judgments(again)
    ]


@pytest.mark.parametrize("form", ["judgments", "csv", "label-studio", "trl"])
def test_a_nul_character_in_a_stored_reason_is_put_right_on_export(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path, form: str
) -> None:
    desk.publish(make_pairs(2))
    desk.hire("ana")
    task = desk.answer("ana", "a")
    # As earlier versions of the page accepted it: a further revision of the same answer.
    desk.sql(
        "INSERT INTO labels (assignment_id, annotator_id, revision, choice, reason, "
        "submission_key, guideline_hash, created_ms) VALUES "
        f"('{task.assignment_id}', 'ana', 2, 'a', 'un' || char(0) || 'readable', 'k', 'g', 1)"
    )
    desk.sql("UPDATE assignments SET revision = 2")
    file = tmp_path / "out.file"
    assert run("export", "--round", "r1", "--format", form, "--out", file)[0] == 0
    text = file.read_text(encoding="utf-8")
    assert "\x00" not in text
    assert "\\u0000" not in text
    if form == "judgments":
        # As the data gate reads it.
        (row,) = read_rows(file, JUDGMENTS)
        assert row["reason"] == "un\u2400readable"


@pytest.mark.parametrize("name", ["\u2800", "a\x00b", "x" * 65])
def test_an_imported_name_that_is_none_is_refused(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path, name: str
) -> None:
    desk.publish(make_pairs(3))
    row = {"prompt": "prompt 1", "chosen": "answer 1 b", "rejected": "answer 1 a"}
    file = tmp_path / "vendor.jsonl"
    file.write_text(to_lines([row | {"annotator_id": name}]), encoding="utf-8")
    code, _, err = run("import", file, "--round", "r1", "--format", "trl")
    assert (code, "annotator is" in err) == (2, True)
    assert desk.sql("SELECT count(*) FROM labels") == [(0,)]


def test_a_second_import_of_a_file_changes_nothing(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(3))
    row = {"prompt": "prompt 1", "chosen": "answer 1 b", "rejected": "answer 1 a"}
    file = tmp_path / "vendor.jsonl"
    file.write_text(to_lines([row]), encoding="utf-8")
    run("import", file, "--round", "r1", "--format", "trl")
    code, out, _ = run("import", file, "--round", "r1", "--format", "trl")
    assert (code, out) == (0, "0 judgments imported, 1 already known, 0 refused\n")
    assert desk.progress().judgments == 1


@pytest.mark.parametrize("form", ["trl", "label-studio"])
def test_a_format_goes_out_and_in_again(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path, form: str
) -> None:
    pairs = make_pairs(20)
    desk.publish(pairs)
    desk.hire("ana")
    given = ["a", "b"] * 9 + (["tie", "both_bad"] if form == "label-studio" else ["a", "b"])
    said = {desk.answer("ana", choice).pair.pair_id: choice for choice in given}
    file = tmp_path / "out.file"
    assert run("export", "--round", "r1", "--format", form, "--out", file)[0] == 0
    other = tmp_path / "other.db"
    comparisons = write_comparisons(tmp_path / "c.jsonl", pairs)
    main(["publish", "--store", str(other), "--round", "r1", "--comparisons", str(comparisons)])
    assert (
        main(["import", "--store", str(other), "--round", "r1", "--format", form, str(file)]) == 0
    )
    again = tmp_path / "again.jsonl"
    main(["export", "--store", str(other), "--round", "r1", "--out", str(again)])
    judgments = read_judgments(again)
    assert {one.pair_id: one.choice for one in judgments} == said
    assert {(one.annotator_id, one.kind) for one in judgments} == {("ana", "import")}


def test_imported_judgments_of_unknown_pairs_are_refused_with_the_reason(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(3))
    file = tmp_path / "vendor.jsonl"
    rows = [{"prompt": "another", "chosen": "x", "rejected": "y"}]
    file.write_text(to_lines(rows), encoding="utf-8")
    code, out, err = run("import", file, "--round", "r1", "--format", "trl")
    assert (code, out) == (2, "0 judgments imported, 0 already known, 1 refused\n")
    assert "round r1 does not contain the pair" in err


def test_label_studio_gets_shuffled_sides_and_its_configuration(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(200))
    file = tmp_path / "tasks.json"
    run("export", "--round", "r1", "--format", "label-studio", "--out", file)
    tasks = json.loads(file.read_text(encoding="utf-8"))
    a_left = sum(task["data"]["left"].endswith(" a") for task in tasks)
    # Binomial(200, 1/2): standard deviation 7.1.
    assert abs(a_left - 100) < 22
    config = (tmp_path / "tasks.config.xml").read_text(encoding="utf-8")
    assert '<Pairwise name="pref" toName="a,b"/>' in config


def test_every_form_says_which_response_was_cut(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    pairs = [replace(pair, finished_b=n % 2 == 0) for n, pair in enumerate(make_pairs(40))]
    desk.publish(pairs)
    desk.hire("ana")
    for _ in pairs:
        desk.answer("ana", "a")
    for form in ("label-studio", "csv", "trl"):
        assert run("export", "--round", "r1", "--format", form, "--out", tmp_path / form)[0] == 0
    cut = {f"answer {n} b" for n in range(1, 40, 2)}
    told: dict[str, set[str]] = {form: set() for form in ("label-studio", "csv", "trl")}
    for task in json.loads((tmp_path / "label-studio").read_text(encoding="utf-8")):
        for side in ("left", "right"):
            note = task["data"][f"{side}_note"]
            assert note in ("", "The response was cut here, at the length limit.")
            told["label-studio"] |= {task["data"][side]} if note else set()
    with (tmp_path / "csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            told["csv"] |= {row[name] for name in ("a", "b") if row[f"{name}_finished"] == "cut"}
    for line in (tmp_path / "trl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        told["trl"] |= {row[one] for one in ("chosen", "rejected") if not row[f"{one}_finished"]}
    assert told == dict.fromkeys(told, cut)
    for note in ("$left_note", "$right_note"):
        assert note in (tmp_path / "label-studio.config.xml").read_text(encoding="utf-8")


def test_a_token_can_have_fewer_days_and_fewer_rights(run: Command, desk: Any) -> None:
    before = int(time.time() * 1000)
    columns = "role, rights, token_expires_ms FROM annotators WHERE annotator_id"
    for arguments, role, rights, days in (
        (("ana",), "annotator", None, 90),
        (("lea", "--lead"), "lead", "export,pause,publish", 90),
        (("leo", "--rights", "pause", "--days", "7"), "lead", "pause", 7),
        (("lou", "--days", "0"), "annotator", None, None),
    ):
        code, token, err = run("token", *arguments)
        assert (code, len(token.strip())) == (0, 43), err
        ((was, may, until),) = desk.sql(f"SELECT {columns} = '{arguments[0]}'")
        assert (was, may) == (role, rights)
        if days is None:
            assert until is None
        else:
            assert 0 <= until - before - days * 86_400_000 < 3_600_000
    code, _, err = run("token", "zoe", "--rights", "pause,fly")
    assert (code, err) == (2, "right 'fly', expected some of export, pause, publish\n")
    assert run("token", "zoe", "--days", "-1")[0] == 2
    assert desk.sql("SELECT count(*) FROM annotators WHERE annotator_id = 'zoe'") == [(0,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--behind-proxy", "10.0.0.5"), "expected --allow-host NAME too"),
        (("--behind-proxy", "x", "--allow-host", "y"), "'x' does not appear to be"),
        (("--sign-in-header", "X-Forwarded-User"), "believed of a proxy only"),
    ],
)
def test_a_proxy_that_is_half_named_opens_no_page(
    run: Command, options: tuple[str, ...], message: str
) -> None:
    code, out, err = run("serve", "--port", "0", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_table_holds_no_formula(run: Command, desk: Any, make_pairs: Any, tmp_path: Path) -> None:
    (pair,) = make_pairs(1)
    bad = "=HYPERLINK('http://evil')"
    pair = replace(pair, response_a=bad, pair_id=pair_id(pair.prompt, bad, pair.response_b))
    desk.publish([pair])
    desk.hire("@ana")
    desk.answer("@ana", "a")
    run("export", "--round", "r1", "--format", "csv", "--out", tmp_path / "t.csv")
    table = (tmp_path / "t.csv").read_text(encoding="utf-8")
    assert "'=HYPERLINK" in table
    assert ",'@ana," in table
    assert ",=HYPERLINK" not in table


def test_people_as_annotators_wait_then_give_their_judgments(desk: Any, make_pairs: Any) -> None:
    store = str(desk.sql("PRAGMA database_list")[0][2])
    people = PeopleAnnotator(LabelParams(annotators="people", store=store))
    pairs = make_pairs(4)
    desk.hire("ana")
    with pytest.raises(MissingJudgmentsError, match="round r1 waits for 4 of 4 judgments") as waits:
        people.judge(pairs)
    assert "make annotate" in str(waits.value)
    for _ in range(3):
        desk.answer("ana", "a")
    with pytest.raises(MissingJudgmentsError, match="waits for 1 of 4"):
        people.judge(pairs)
    desk.answer("ana", "b")
    judgments = people.judge(pairs)
    assert [one.pair_id for one in judgments] == [pair.pair_id for pair in pairs]
    assert sorted(one.choice for one in judgments) == ["a", "a", "a", "b"]
    assert people.judge(pairs) == judgments
    # Both times they were taken out, and that is in the log.
    log = desk.sql("SELECT round, detail FROM events WHERE kind = 'export'")
    assert log == [("r1", '{"form": "stage", "n": 4}')] * 2


def test_the_environment_can_name_the_store_that_all_workspaces_share(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_FEEDBACK_STORE", str(desk.sql("PRAGMA database_list")[0][2]))
    people = PeopleAnnotator(LabelParams(annotators="people", store="/nowhere/else.db"))
    people.publish(make_pairs(3))
    assert desk.progress().missing == 3
