"""Every damaged file of the corpus is one clear error, every odd one is read."""

from pathlib import Path

import pytest

from preferences.__main__ import main
from preferences.formats.reading import open_source
from tests.file_cases import Case
from tests.malformed import DAMAGED
from tests.sound_files import SOUND


def test_the_corpus_is_large_enough_and_no_file_is_there_twice():
    assert len(DAMAGED) >= 110
    assert len(SOUND) >= 20
    assert len({case.name for case in DAMAGED}) == len(DAMAGED)


@pytest.mark.parametrize("case", DAMAGED, ids=lambda case: case.name)
def test_a_damaged_file_is_one_line_that_names_place_and_cause(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, report = tmp_path / case.name, tmp_path / "report"
    case.write(path)
    before = path.read_bytes() if path.is_file() else b""

    assert main(["check", str(path), "--report", str(report)]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(str(path))
    assert said.err.count("\n") == 1
    assert said.err.isprintable() or said.err.rstrip("\n").isprintable()
    for words in case.says:
        assert words in said.err
    assert not report.exists()
    assert (path.read_bytes() if path.is_file() else b"") == before


@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.name)
def test_an_odd_but_sound_file_is_read(case: Case, tmp_path: Path):
    path = tmp_path / case.name
    case.write(path)
    assert len(list(open_source(path))) in (12, 13)


def test_of_many_problems_the_first_twenty_and_the_total_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "x.jsonl"
    path.write_text(
        "".join(f'{{"prompt": "p", "chosen": {n}, "rejected": "b"}}\n' for n in range(33))
    )

    assert main(["check", str(path)]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[19].startswith(f"{path}:20: ")
    assert lines[20] == "... and 13 more problems; 33 in all"


def test_a_name_that_would_steer_the_terminal_is_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [f'{{"prompt": "q{n}", "chosen": "a{n}", "rejected": "b"}}\n' for n in range(40)]
    for number, name in enumerate(("\x1b[31mred\n.jsonl", "\u202egnp.jsonl", "\udc80.jsonl")):
        path = tmp_path / name
        path.write_text("{}\n")
        assert main(["check", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.rstrip("\n").isprintable()
        path.write_text("".join(rows))
        out = tmp_path / f"{number}\x1b.jsonl"
        assert main(["convert", str(path), str(out), "--to", "trl"]) == 0
        assert capsys.readouterr().out.rstrip("\n").isprintable()
