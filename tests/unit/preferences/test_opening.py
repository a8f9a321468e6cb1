"""What may be opened, and what a file may cost, with limits small enough to test."""

import gzip
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preferences.formats.files import read_records
from preferences.formats.reading import open_source
from preferences.memory import memory_capped
from preferences.opening import Limits, open_binary, open_regular, open_seekable
from preferences.reader import MalformedDataError, Problems, TooManyProblemsError
from preferences.schemas import printable
from tests.file_cases import good_lines, line, write_workbook
from tests.source_files import ROOT

SMALL = Limits(unpacked_bytes=1000, unpacking=2, blank_lines=10, problems=50, held_bytes=1000)


def said(path, limits):
    problems = Problems(limits)
    list(read_records(path, problems))
    return problems.shown


@pytest.mark.parametrize("opened", [open_regular, open_binary, open_seekable])
@pytest.mark.parametrize("suffix", [".jsonl", ".gz"])
def test_only_a_regular_file_is_opened(tmp_path, opened, suffix):
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is a named pipe, expected a regular file"):
        opened(pipe)
    device = tmp_path / f"device{suffix}"
    device.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="is a device"):
        opened(device)
    address = tmp_path / f"socket{suffix}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        with pytest.raises(OSError, match="is a socket"):
            opened(address)
    with pytest.raises(IsADirectoryError):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.json.gz", "x.csv.gz", "x.tsv.gz"])
def test_a_packed_file_is_unpacked_up_to_a_limit(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b" " * 1000))
    assert not any("unpacks to" in problem for problem in said(path, SMALL))
    path.write_bytes(gzip.compress(b" " * 1001))
    (problem,) = (problem for problem in said(path, SMALL) if "unpacks to" in problem)
    assert problem.startswith(f"{path}: cannot be read (unpacks to over 1,000 bytes")


def test_a_larger_packed_file_may_unpack_to_a_multiple_of_its_size(tmp_path):
    path, text = tmp_path / "x.gz", os.urandom(5000)
    path.write_bytes(gzip.compress(text))
    with open_binary(path, SMALL) as stream:
        assert stream.read() == text


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.tsv"])
def test_blank_lines_are_read_up_to_a_limit(tmp_path, name):
    path = tmp_path / name
    head = b"" if name == "x.jsonl" else b"prompt\n"
    path.write_bytes(head + b"\n" * 10)
    assert said(path, SMALL) == []
    path.write_bytes(head + b"\n" * 11)
    (problem,) = said(path, SMALL)
    assert "over 10 blank lines; the rest of the file is not read" in problem


def test_blank_lines_within_quoted_cells_are_text(tmp_path):
    """Twelve lines without a letter, in texts of three paragraphs each."""
    path = tmp_path / "x.csv"
    text = '"one\n\ntwo\n \nthree"'
    path.write_text("prompt,chosen\n" + f"{text},{text}\n" * 3)
    assert said(path, SMALL) == []
    assert len(list(read_records(path))) == 3


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("A13", "row 12: over 10 blank lines; the rest of the file is not read"),
        ("XFD1048576", "row 12: over 10 blank lines; the rest of the file is not read"),
        ("ALM1", "row 1: 1,001 columns, expected at most 1,000"),
    ],
)
def test_a_workbook_is_only_as_large_as_its_cells(tmp_path, cell, problem):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active["A1"], book.active[cell] = "prompt", "far"
    path = tmp_path / "x.xlsx"
    book.save(path)
    limits = replace(SMALL, unpacked_bytes=1_000_000)
    assert said(path, limits) == [f"{path} {problem}"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (['<row r="2">' + "<c/>" * 16_385 + "</row>"], ": a row has over 16,384 cells"),
        (['<row r="2">' + "<c/>" * 1_000 + "</row>"], " row 2: over 100 empty cells; the rest"),
        (
            [f'<row r="{n}"><c r="XFD{n}" s="0"/></row>' for n in range(2, 9)],
            " row 2: over 100 empty cells; the rest",
        ),
    ],
)
def test_a_workbook_of_empty_cells_is_refused(tmp_path, rows, problem):
    pytest.importorskip("openpyxl")
    path = tmp_path / "x.xlsx"
    write_workbook(path, rows)
    limits = replace(SMALL, unpacked_bytes=1_000_000, empty_cells=100)
    (problem_said,) = said(path, limits)
    assert problem_said.startswith(f"{path}{problem}")


def test_a_workbook_may_have_twenty_empty_cells_for_each_filled_one(tmp_path):
    pytest.importorskip("openpyxl")
    path = tmp_path / "x.xlsx"
    filled = '<c t="inlineStr"><is><t>p</t></is></c>'
    write_workbook(path, [f"<row>{filled * 3}{'<c/>' * 60}</row>"] * 50)
    limits = replace(SMALL, unpacked_bytes=1_000_000, empty_cells=20)
    problems = Problems(limits)
    assert len(list(read_records(path, problems))) == 50
    assert problems.shown == []
    assert said(path, replace(limits, empty_cells=0)) == []
    write_workbook(path, [f"<row>{filled * 3}{'<c/>' * 62}</row>"] * 50)
    assert "over 20 empty cells" in said(path, limits)[0]


def test_reading_ends_after_very_many_problems(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(line({"chosen": n, "rejected": "b"}) for n in range(49)))
    with pytest.raises(MalformedDataError, match="; 49 in all"):
        list(open_source(path, "trl", limits=SMALL))
    path.write_bytes(b"".join(line({"chosen": n, "rejected": "b"}) for n in range(5000)))
    with pytest.raises(TooManyProblemsError, match="30 more problems; the rest was not read") as e:
        list(open_source(path, "trl", limits=SMALL))
    assert e.value.total == 50
    path.write_bytes(line({"chosen": 1, "rejected": "b"}) * 5000)
    with pytest.raises(
        TooManyProblemsError,
        match=r"50 such rows, then 2, 3, 4, \.\.\.\)\n\.\.\. the rest was not read",
    ):
        list(open_source(path, "trl", limits=SMALL))


def test_rows_that_have_to_be_held_are_held_up_to_a_limit(tmp_path):
    path = tmp_path / "x.jsonl"
    row = {"prompt": "p", "completion": "c" * 100, "label": True}
    path.write_bytes(line(row) * 7)
    assert list(open_source(path, limits=SMALL)) == []
    path.write_bytes(line(row) * 12)
    with pytest.raises(MalformedDataError, match=r"over 1,000 bytes of rows.* split the data"):
        list(open_source(path, limits=SMALL))


def test_memory_beyond_the_limit_is_refused_and_the_limit_ends():
    with memory_capped(0.25):
        with pytest.raises(MemoryError):
            bytearray(1 << 30)
        assert len(bytearray(1 << 20)) == 1 << 20
    assert len(bytearray(1 << 30)) == 1 << 30


def test_a_table_that_needs_more_memory_is_refused_and_not_called_damaged(tmp_path):
    path = tmp_path / "x.parquet"
    same = pa.DictionaryArray.from_arrays([0] * 128, ["x" * 3_900_000])
    names = ["prompt", "chosen", "rejected"]
    table = pa.table([pa.array(["p"] * 128), same, pa.array(["b"] * 128)], names=names)
    # Read back as plain texts, of which a batch takes half a gigabyte.
    pq.write_table(table, path, dictionary_pagesize_limit=1 << 30, store_schema=False)
    assert path.stat().st_size < 1 << 20
    # A process of its own: where this one frees what earlier tests took, it gains room.
    done = subprocess.run(
        [sys.executable, "-m", "preferences", "check", str(path), "--max-memory", "0.1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"{path}: needs more than 0.1 GiB of memory (--max-memory)\n"


def test_many_rows_within_the_limits_are_read(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(good_lines(12))
    assert len(list(open_source(path, limits=replace(SMALL, blank_lines=0)))) == 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ä 你 🙂", "plain ä 你 🙂"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202e\u200b", r"\u202e\u200b"),
        ("\udc80", r"\udc80"),
        ("\u2028", r"\u2028"),
    ],
)
def test_what_steers_a_terminal_is_escaped_and_nothing_else(text, expected):
    assert printable(text) == expected
