"""What export writes in each form, what import takes of it, and what it refuses."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedback.__main__ import main
from feedback.judgments import read_judgments, to_lines
from preferences.reader import read_rows
from preferences.records import Judgment, pair_id
from preferences.schemas import JUDGMENTS
from preferences.statistics import votes_of
from tests.unit.feedback.conftest import Command, write_comparisons
from tests.unit.feedback.judged_pairs import a_judgment


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


def test_nobody_is_said_to_have_been_shown_the_better_response_first(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    """Rows of chosen and rejected do not say; every import was a vote for the left one."""
    desk.publish(pairs := make_pairs(3))
    file = tmp_path / "vendor.jsonl"
    row = {"prompt": "prompt 1", "chosen": "answer 1 b", "rejected": "answer 1 a"}
    file.write_text(to_lines([row]), encoding="utf-8")
    run("import", file, "--round", "r1", "--format", "trl")
    exported = tmp_path / "judgments.jsonl"
    assert run("export", "--round", "r1", "--out", exported)[0] == 0

    (row,) = read_rows(exported, JUDGMENTS)
    assert (row["choice"], row["shown_order"]) == ("b", None)
    judgment = Judgment.from_row(row)
    assert votes_of(pairs, [judgment]).first_wins() is None
    # Who has the export can take it: nothing changes.
    code, out, _ = run("import", exported, "--round", "r1")
    assert (code, out) == (0, "0 judgments imported, 1 already known, 0 refused\n")


def vendor_file(path: Path, *changes: dict[str, Any]) -> Path:
    row = {"prompt": "prompt 1", "chosen": "answer 1 b", "rejected": "answer 1 a"}
    path.write_text(to_lines([row | change for change in changes]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("label", "choice"),
    [({}, "b"), ({"label": 1}, "b"), ({"label": 0.75}, "b"), ({"label": 0.5}, "tie")],
)
def test_a_label_of_a_half_is_a_tie(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path, label: dict[str, Any], choice: str
) -> None:
    desk.publish(make_pairs(3))
    file = vendor_file(tmp_path / "vendor.jsonl", {"strength": 2} | label)
    assert run("import", file, "--round", "r1", "--format", "trl")[0] == 0
    strength = 2 if choice == "b" else None
    assert desk.sql("SELECT choice, strength FROM labels") == [(choice, strength)]


@pytest.mark.parametrize("label", [0, 0.2, 1.5, True, None, "1"])
def test_a_label_that_is_none_is_refused_with_its_place(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path, label: object
) -> None:
    desk.publish(make_pairs(3))
    file = vendor_file(tmp_path / "vendor.jsonl", {}, {"label": label})
    code, _, err = run("import", file, "--round", "r1", "--format", "trl")
    assert (code, err) == (2, f"{file}:2: label is {label!r}, expected 0.5 (a tie) to 1\n")
    assert desk.sql("SELECT count(*) FROM labels") == [(0,)]


def test_an_annotator_of_null_is_none(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(3))
    file = vendor_file(tmp_path / "vendor.jsonl", {"annotator_id": None})
    assert run("import", file, "--round", "r1", "--format", "trl")[0] == 0
    assert desk.sql("SELECT annotator_id FROM labels") == [("vendor",)]


def test_rows_of_one_annotator_that_contradict_each_other_are_refused(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(3))
    other_way = {"chosen": "answer 1 a", "rejected": "answer 1 b"}
    file = vendor_file(tmp_path / "vendor.jsonl", {}, other_way, {"annotator_id": "zoe"})
    code, out, err = run("import", file, "--round", "r1", "--format", "trl")
    assert (code, out) == (0, "1 judgments imported, 0 already known, 2 refused\n")
    assert err.count("vendor judges pair") == err.count("differently in another row") == 2
    assert desk.sql("SELECT annotator_id FROM labels") == [("zoe",)]
    # The same row twice is no contradiction.
    file = vendor_file(tmp_path / "vendor.jsonl", {}, {})
    code, out, _ = run("import", file, "--round", "r1", "--format", "trl")
    assert (code, out) == (0, "1 judgments imported, 0 already known, 0 refused\n")


@pytest.mark.parametrize("state", ["on the screen", "returned", "undone"])
def test_a_pair_that_was_on_the_screen_of_its_annotator_is_imported(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path, state: str
) -> None:
    pairs = make_pairs(2)
    desk.publish(pairs)
    desk.hire("ana")
    seen = desk.serve("ana")
    if state == "returned":
        desk.sql("UPDATE assignments SET state = 'free'")
    if state == "undone":
        desk.submit(seen, "tie")
        desk.undo("ana")
    rows = [a_judgment(pair, choice="a", strength=None).to_row() for pair in pairs]
    file = tmp_path / "j.jsonl"
    file.write_text(to_lines(rows), encoding="utf-8")
    for out in ("2 judgments imported, 0 already known", "0 judgments imported, 2 already known"):
        assert run("import", file, "--round", "r1")[:2] == (0, f"{out}, 0 refused\n")
    assert (desk.progress().judgments, desk.progress().complete) == (2, True)
    run("export", "--round", "r1", "--out", tmp_path / "out.jsonl")
    assert [one.choice for one in read_judgments(tmp_path / "out.jsonl")] == ["a", "a"]
    assert desk.serve("ana") is None


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


def test_judgments_of_a_round_that_is_not_there_are_refused_at_once(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(2))
    file = vendor_file(tmp_path / "vendor.jsonl", {})
    code, out, err = run("import", file, "--round", "r2", "--format", "trl")
    assert (code, out) == (2, "")
    assert err.endswith("round r2 has not been published\n")

    other = tmp_path / "misspelt.db"
    assert (
        main(["import", str(file), "--round", "r1", "--format", "trl", "--store", str(other)]) == 2
    )
    assert not other.exists()


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


def test_a_name_in_the_other_spelling_of_unicode_is_the_person_whom_the_store_knows(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    composed, decomposed = "Jos\u00e9", "Jose\u0301"
    desk.hire(composed)
    desk.publish(make_pairs(2), overlap=2)
    desk.answer(composed, "a")
    pairs = make_pairs(2)
    rows = [a_judgment(pair, choice="a", strength=None) for pair in pairs]
    file = tmp_path / "j.jsonl"
    lines = [replace(row, annotator_id=decomposed).to_row() for row in rows]
    file.write_text(to_lines(lines), encoding="utf-8")
    said = run("import", file, "--round", "r1")
    assert said[:2] == (0, "1 judgments imported, 1 already known, 0 refused\n")
    assert desk.sql("SELECT annotator_id FROM annotators") == [(composed,)]
