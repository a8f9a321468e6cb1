"""Files that are damaged as a whole, cost too much to read, or are no regular files."""

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.file_cases import GOOD, Case, book, good_lines, holds, line, parquet


def _cut_parquet(path: Path) -> None:
    parquet(path, {key: [row[key] for row in GOOD] for key in GOOD[0]})
    path.write_bytes(path.read_bytes()[:-40])


def _column_twice(path: Path) -> None:
    names = ["prompt", "chosen", "rejected", "chosen"]
    pq.write_table(pa.table([pa.array(["p"])] * 4, names=names), path)


def _latin_parquet(path: Path) -> None:
    buffers = pa.array(["café".encode("latin-1")], pa.binary()).buffers()
    text = pa.Array.from_buffers(pa.string(), 1, buffers)
    parquet(path, {"prompt": ["p"], "chosen": text, "rejected": ["b"]})


def _late_parquet(path: Path) -> None:
    columns = {key: [row[key] for row in GOOD[:2]] for key in GOOD[0]}
    parquet(path, {**columns, "when": pa.array([0, 2**62], pa.timestamp("us"))})


_BOOKS = (
    book("wide.xlsx", ["<row>" + "<c/>" * 2_000_000 + "</row>"], "a row has over 16,384 cells"),
    book(
        "far.xlsx",
        [f'<row r="{n}"><c r="XFD{n}" s="0"/></row>' for n in range(2, 1_000)],
        "over 2,000,000 empty cells",
    ),
    book("gap.xlsx", ['<row r="1048576"><c/></row>'], "over 1,000,000 blank lines"),
)
"""Workbooks of a few kilobytes with millions of cells, once openpyxl has read or filled them."""


def _pipe_in_folder(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "rows.jsonl")


def _pipe_as_judgments(path: Path) -> None:
    path.mkdir()
    (path / "judgments.jsonl").write_bytes(b"")
    os.mkfifo(path / "comparisons.jsonl")


def _link_in_folder(path: Path) -> None:
    path.mkdir()
    (path / "rows.jsonl").symlink_to(path / "rows.jsonl")


_NOBODY_WAITS = (
    Case("pipe.jsonl", os.mkfifo, ("is a named pipe, expected a regular file",)),
    Case("pipe.jsonl.gz", os.mkfifo, ("is a named pipe, expected a regular file",)),
    Case("pipe.csv", os.mkfifo, ("is a named pipe, expected a regular file",)),
    Case("pipe.json", os.mkfifo, ("is a named pipe, expected a regular file",)),
    Case("pipe.parquet", os.mkfifo, ("is a named pipe, expected a regular file",)),
    Case("pipe.tsv", os.mkfifo, ("is a named pipe, expected a regular file",)),
    Case("pipe.xlsx", os.mkfifo, ("is a named pipe, expected a regular file",)),
    Case("pipe_in_folder", _pipe_in_folder, ("rows.jsonl", "is a named pipe")),
    Case("pipe_as_judgments", _pipe_as_judgments, ("comparisons.jsonl", "is a named pipe")),
    Case("link_in_folder", _link_in_folder, ("rows.jsonl", "is a link that leads to itself")),
    Case("zeros.jsonl", lambda path: path.symlink_to("/dev/zero"), ("is a device, expected",)),
    Case("itself.jsonl", lambda path: path.symlink_to(path), ("is a link that leads to itself",)),
    Case("nowhere.jsonl", lambda path: path.symlink_to("nothing"), ("no such file",)),
)
"""What is no regular file; reading all but the last never ended, or ended in a traceback."""
_MIB_OF_BLANK = gzip.compress(b" " * (1 << 20))
_COSTLY = (
    holds("bomb.jsonl.gz", _MIB_OF_BLANK * 257, "unpacks to over 268,435,456 bytes"),
    holds("bomb.json.gz", _MIB_OF_BLANK * 257, "unpacks to over 268,435,456 bytes"),
    holds("bomb.parquet.gz", _MIB_OF_BLANK * 257, "unpacks to over 268,435,456 bytes"),
    holds("blank.jsonl", good_lines() + b"\n" * 1_000_100, "over 1,000,000 blank lines"),
    holds(
        "blank.csv",
        b"prompt,chosen,rejected\np,a,b\n" + b"\n" * 1_000_100,
        "over 1,000,000 blank lines",
    ),
)
_CSV = b"prompt,chosen,rejected\np,a,b\n"
_FILES = (
    holds("empty.jsonl", b"", "no row to detect the format from"),
    holds("white.jsonl", b" \n\n\t\n", "no row to detect the format from"),
    holds("other_columns.jsonl", line({"question": "q", "answer": "a"}), "no known format"),
    holds("backwards.jsonl", '{"pro\u202empt": "p"}'.encode(), r"no known format (pro\u202empt)"),
    holds("red.jsonl", rb'{"pro\u001b[31mmpt": "p"}', r"no known format (pro\x1b[31mmpt)"),
    holds("data.docx", good_lines(), "unknown suffix"),
    holds("not_gzip.jsonl.gz", good_lines(), "damaged gzip file"),
    holds("cut.jsonl.gz", gzip.compress(good_lines(12))[:-20], "damaged gzip file"),
    holds("object.json", b'{"rows": []}', "expected a list of objects"),
    holds("items.json", b"[1]", "item 1: expected an object"),
    holds("open.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"}', "not JSON"),
    holds("long_row.csv", _CSV + b"p," + b"x," * (2 << 20) + b"b\n", "over 4,194,304 bytes"),
    holds("cells.csv", _CSV + b"p,a\n", ":3: 2 cells, expected 3"),
    holds("header_twice.csv", b"prompt,chosen,chosen\np,a,b\n", ":1: a column name occurs twice"),
    holds("quote.csv", _CSV + b'p,"a,b\n', "not CSV"),
    holds("latin.csv", _CSV + "p,café,b\n".encode("latin-1"), ":3: not UTF-8: byte 0xe9"),
    holds("not.parquet", b"PAR1 no, not really", "damaged Parquet file"),
    Case("cut.parquet", _cut_parquet, ("damaged Parquet file",)),
    Case(
        "null.parquet",
        lambda path: parquet(path, {"prompt": ["p"], "chosen": [None], "rejected": ["b"]}),
        ("row 1", 'field "chosen": expected text or messages, got null'),
    ),
    Case("twice.parquet", _column_twice, ('column "chosen": occurs twice',)),
    Case("latin.parquet", _latin_parquet, ("row 1", 'field "chosen": not UTF-8: byte 0xe9 at 4')),
    Case("late.parquet", _late_parquet, ("row 2", 'field "when": cannot be read')),
    Case("no_file.jsonl", lambda path: None, ("no such file",)),
    Case("no_data", lambda path: path.mkdir(), ("no data file in this folder",)),
)
_TABLES = (
    holds("cells.tsv", _CSV.replace(b",", b"\t") + b"p\ta\n", ":3: 2 cells, expected 3"),
    holds("commas.tsv", _CSV, "expected tabs between columns, found commas"),
    holds("not.xlsx", b"PK no, not really", "damaged workbook"),
    holds("half.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"} {}]', "not JSON"),
    holds(
        "after.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"}] x', "not JSON: Extra data"
    ),
    holds(
        "alpaca_eval.jsonl",
        line({"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1}),
        "as in alpaca_eval: --map alpaca_eval",
    ),
)
DAMAGED_FILES = (*_NOBODY_WAITS, *_COSTLY, *_FILES, *_TABLES, *_BOOKS)
