"""`python -m preferences convert`: what it says, and what it refuses to write over."""

import pytest

from preferences.__main__ import main
from tests.integration.preference_files import ROWS, write


def test_convert_says_what_it_wrote_and_what_it_left_out(tmp_path, capsys):
    lone = {"prompt": "r", "completion": "x", "label": True}
    rows = [
        {"prompt": "p", "completion": text, "label": text == "good"} for text in ("good", "bad")
    ]
    path = write(tmp_path / "x.jsonl", [*rows, lone])
    out = tmp_path / "y.csv"
    assert main(["convert", str(path), str(out), "--to", "trl_messages"]) == 0
    assert capsys.readouterr().out == (
        f"{out}: 1 pairs; completions without a counterpart left out: 1; "
        "prompts written as messages: 1\n"
    )
    assert main(["convert", str(out), str(tmp_path / "z.parquet"), "--to", "trl"]) == 0


def test_a_file_name_of_no_known_kind_is_refused_before_reading(tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", ROWS)
    assert main(["convert", str(path), str(tmp_path / "x.docx"), "--to", "trl"]) == 2
    assert "unknown suffix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("read", "target", "to"),
    [
        ("in/x.jsonl", "in/x.jsonl", "hh"),
        ("in/x.jsonl", "in/../in/x.jsonl", "hh"),
        ("in/x.jsonl", "link/x.jsonl", "hh"),
        ("link/x.jsonl", "in/x.jsonl", "hh"),
        ("in/x.jsonl", "to_x.jsonl", "hh"),
        ("in", "in/y.jsonl", "hh"),
        ("in", "in/sub/y.jsonl", "hh"),
        ("in", "in", "judgments"),
        ("in", "in/judged", "judgments"),
        ("judged/comparisons.jsonl", "judged", "judgments"),
    ],
)
def test_convert_never_writes_over_or_among_what_it_reads(tmp_path, capsys, read, target, to):
    for name in ("in/x.jsonl", "judged/comparisons.jsonl"):
        (tmp_path / name).parent.mkdir()
        write(tmp_path / name, ROWS)
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "to_x.jsonl").symlink_to("in/x.jsonl")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}

    code = main(["convert", str(tmp_path / read), str(tmp_path / target), "--to", to])

    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith(f"{tmp_path / target}: ")
    assert captured.err.endswith(f"{tmp_path / read}, which is read; choose another place\n")
    assert captured.err.count("\n") == 1
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_convert_writes_beside_what_it_reads(tmp_path):
    path = write(tmp_path / "x.jsonl", ROWS)
    assert main(["convert", str(path), str(tmp_path / "y.jsonl"), "--to", "trl"]) == 0
    assert main(["convert", str(path), str(tmp_path), "--to", "judgments"]) == 0
