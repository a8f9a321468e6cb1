"""The commands, as a person types them."""

import json
import shlex
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from feedback.__main__ import main
from feedback.judgments import read_judgments, to_lines
from tests.unit.feedback.conftest import Command, write_comparisons


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
    run("backup", tmp_path / "backups/copy.db")
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


def test_a_port_that_somebody_has_is_named(run: Command) -> None:
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", 0))
        somebody.listen()
        port = somebody.getsockname()[1]
        code, _, error = run("serve", "--port", port)
    assert code == 2
    assert error.startswith(f"port {port} of 127.0.0.1 is taken")
    assert error.count("\n") == 1


def test_the_command_that_makes_a_token_names_the_store_of_the_page(
    run: Command, desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.hire("ana")
    monkeypatch.setattr("feedback.commands.run", lambda *_, ready: ready())

    def said() -> str:
        code, out, _ = run("serve", "--port", "0")
        assert code == 0
        return out.partition("in this folder: ")[2]

    path = desk.sql("PRAGMA database_list")[0][2]
    store = shlex.quote(path)
    assert said() == f"python -m feedback token NAME --store {store})\n"
    monkeypatch.setenv("RLHF_FEEDBACK_STORE", path)
    assert said() == "python -m feedback token NAME)\n"


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


def test_a_corrected_gold_item_is_changed_whichever_side_it_is_on(
    run: Command, desk: Any, tmp_path: Path
) -> None:
    path = tmp_path / "gold.jsonl"
    row = {"prompt": "p", "response_a": "good", "response_b": "bad", "gold": "a"}
    other = {"prompt": "q", "response_a": "good", "response_b": "bad", "gold": "a"}
    turned = row | {"response_a": "bad", "response_b": "good"}
    for rows, out, stored in (
        ([row], "1 added, 0 changed, 0 kept", ["a"]),
        ([row, other], "1 added, 0 changed, 1 kept", ["a", "a"]),
        ([row | {"gold": "b"}, other], "0 added, 1 changed, 1 kept", ["b", "a"]),
        ([turned, other], "0 added, 0 changed, 2 kept", ["b", "a"]),
        ([turned | {"gold": "b"}], "0 added, 1 changed, 0 kept", ["a", "a"]),
    ):
        path.write_text(to_lines(rows), encoding="utf-8")
        assert run("publish", "--gold", path)[:2] == (0, f"gold items: {out}\n")
        gold = desk.sql("SELECT gold FROM pairs ORDER BY content")
        assert gold == [(one,) for one in stored]
    path.write_text(to_lines([row, turned]), encoding="utf-8")
    code, _, err = run("publish", "--gold", path)
    assert (code, "has two gold choices, expected one" in err) == (2, True)


def test_status_awaits_nobody_whose_token_has_expired_while_no_page_was_open(
    run: Command, desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana", "ben", "cleo")
    desk.publish(make_pairs(1), overlap=2)
    desk.answer("ana", "a")
    desk.answer("ben", "b")
    assert run("status", "--round", "r1")[0] == 5
    desk.sql("UPDATE annotators SET token_expires_ms = 1 WHERE annotator_id = 'cleo'")
    assert run("status", "--round", "r1")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("publish",), "expected --round or --gold"),
        (("publish", "--round", "r1", "--overlap", "0"), "--overlap is 0, expected 1 to 20"),
        (("publish", "--round", "r1", "--overlap", "-3"), "--overlap is -3, expected 1 to 20"),
        (("publish", "--round", "r1", "--overlap", "21"), "--overlap is 21, expected 1 to 20"),
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


@pytest.mark.parametrize(
    "arguments", [("status",), ("export", "--round", "r1", "--out", "x")], ids=["status", "export"]
)
def test_a_store_that_is_not_there_is_named_and_not_made(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "misspelt.db"
    assert main([*arguments, "--store", str(path)]) == 2
    assert capsys.readouterr() == ("", f"{path}: no such store; `publish` and `serve` make one\n")
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_a_round_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.db"
    assert main(["token", "ana", "--store", str(path)]) == 0
    capsys.readouterr()
    assert main(["status", "--store", str(path)]) == 0
    assert "no round has been published" in capsys.readouterr().out


def test_a_token_for_a_store_that_is_made_for_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which a misspelt store, or that of another folder, would be."""
    path = tmp_path / "new.db"
    for said in (f"{path}: no such store yet; one is made, where only its page will look\n", ""):
        assert main(["token", "ana", "--store", str(path)]) == 0
        token, error = capsys.readouterr()
        assert (len(token.split()), error) == (1, said)


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


def test_a_token_can_have_fewer_days_and_fewer_rights(run: Command, desk: Any) -> None:
    before = int(time.time() * 1000)
    columns = "role, rights, token_expires_ms FROM annotators WHERE annotator_id"
    for arguments, role, rights, days in (
        (("ana",), "annotator", None, 90),
        (("lea", "--lead"), "lead", "export,pause,publish", 90),
        (("leo", "--rights", "pause", "--days", "7"), "lead", "pause", 7),
        (("lou", "--days", "0"), "annotator", None, None),
        (("leo",), "lead", "pause", 90),
        (("leo", "--lead"), "lead", "export,pause,publish", 90),
        (("leo", "--no-lead"), "annotator", None, 90),
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
    code, _, err = run("token", "zoe", "--no-lead", "--rights", "pause")
    assert (code, err) == (
        2, "--no-lead takes the overview away, and --rights gives it; leave one out\n"
    )  # fmt: skip
    with pytest.raises(SystemExit):
        run("token", "zoe", "--lead", "--no-lead")
    assert desk.sql("SELECT 1 FROM annotators WHERE annotator_id = 'zoe'") == []
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


def test_an_export_that_cannot_be_written_leaves_nothing_behind(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path
) -> None:
    desk.publish(make_pairs(2))
    folder = tmp_path / "exports"
    folder.mkdir()
    code, _, err = run("export", "--round", "r1", "--out", folder)
    assert code == 2
    assert str(folder) in err
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
