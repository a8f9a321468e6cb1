"""Over a hundred damaged files and twenty odd but sound ones, made here and not collected.

    python -m tests.malformed FOLDER

writes them all. Each damaged file has exactly one thing wrong with it, beside rows that are fine,
and the words that its error has to hold: the place, what was expected and what was found.
"""

import gzip
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from preferences.records import pair_id

GOOD: list[dict[str, Any]] = [
    {"prompt": f"Where is parcel {n}?", "chosen": f"Parcel {n} is there.", "rejected": f"No {n}."}
    for n in range(12)
]
OWN = {
    "pair_id": pair_id("p", "a", "b"), "prompt_id": "p",
    "prompt": "p", "chosen": "a", "rejected": "b", "margin": 0.0, "weight": 1.0,
    "source": "", "round": "", "split": "train",
}  # fmt: skip
VOTES = {"prompt": "p", "response_a": "a", "response_b": "b", "votes": ["a"], "workers": ["x"]}
SCORED = {"prompt": "p", "responses": ["a", "b"], "scores": [1, 0]}
UNPAIRED = {"prompt": "p", "completion": "a", "label": True}
TASK = {
    "data": {"prompt": "p", "response_a": "a", "response_b": "b"},
    "annotations": [{"completed_by": 1, "result": [{"value": {"selected": "left"}}]}],
}


class Case(NamedTuple):
    """A file: its name, how it is written, and for damaged ones what the error has to say."""

    name: str
    write: Callable[[Path], object]
    says: tuple[str, ...] = ()


def line(row: object) -> bytes:
    """A row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def good_lines(count: int = 3) -> bytes:
    """Rows without fault."""
    return b"".join(line(row) for row in GOOD[:count])


def _raw(name: str, damage: bytes, *says: str, suffix: str = ".jsonl") -> Case:
    """Three good lines, then the damage in line 4."""
    file = f"{name}{suffix}"
    return Case(file, lambda path: path.write_bytes(good_lines() + damage + b"\n"), (":4: ", *says))


def _row(name: str, row: object, *says: str) -> Case:
    """Three good lines, then a row with something wrong."""
    return _raw(name, line(row).rstrip(b"\n"), *says)


def _of(name: str, base: dict[str, Any], changes: dict[str, Any], *says: str) -> Case:
    """A good row of another format, then one that differs."""
    rows = line(base) + line({**base, **changes})
    return Case(f"{name}.jsonl", lambda path: path.write_bytes(rows), (":2: ", *says))


def _bytes(name: str, content: bytes, *says: str) -> Case:
    return Case(name, lambda path: path.write_bytes(content), says)


def _good(**changes: Any) -> dict[str, Any]:
    return {**GOOD[3], **changes}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD[3].items() if key != name}


_NOT_JSON = (
    _raw("cut_off", b'{"prompt": "p", "chosen": "a", "rej', "not JSON"),
    _raw("single_quotes", b"{'prompt': 'p'}", "not JSON"),
    _raw("trailing_comma", b'{"prompt": "p", "chosen": "a", "rejected": "b",}', "not JSON"),
    _raw("two_objects", b'{"prompt": "p"}{"prompt": "q"}', "not JSON"),
    _raw("comment", b'// {"prompt": "p"}', "not JSON"),
    _raw("plain_text", b"Where is my parcel?", "not JSON"),
    _raw("bare_words", b"{prompt: p}", "not JSON"),
    _raw("raw_tab", b'{"prompt": "a\tb", "chosen": "a", "rejected": "b"}', "not JSON"),
    _raw("bad_escape", rb'{"prompt": "\x41", "chosen": "a", "rejected": "b"}', "not JSON"),
    _raw("half_escape", rb'{"prompt": "\u12", "chosen": "a", "rejected": "b"}', "not JSON"),
    _raw("hex_number", b'{"prompt": "p", "chosen": 0x1f}', "not JSON"),
    _raw("leading_zero", b'{"prompt": "p", "margin": 01}', "not JSON"),
    _raw("bom_inside", b'\xef\xbb\xbf{"prompt": "p"}', "not JSON"),
    _raw("nan", b'{"prompt": "p", "chosen": NaN}', "NaN is not a JSON number"),
    _raw("infinity", b'{"prompt": "p", "chosen": -Infinity}', "-Infinity is not a JSON number"),
    _raw(
        "huge_number", b'{"prompt": "p", "margin": 1e999}', 'field "margin"', "fits a 64-bit float"
    ),
    _raw("huge_integer", b'{"prompt": "p", "margin": 1' + b"0" * 400 + b"}", "at most 64 bits"),
    _raw("many_digits", b'{"margin": ' + b"9" * 5000 + b"}", "fewer digits"),
    _raw("twice", b'{"prompt": "p", "prompt": "q"}', 'field "prompt": occurs twice'),
    _raw("nul", rb'{"prompt": "a\u0000b", "chosen": "a"}', 'field "prompt"', "NUL"),
    _raw("lone_surrogate", rb'{"prompt": "\ud83d", "chosen": "a"}', "surrogate", "U+D83D"),
    _raw("latin_1", '{"prompt": "café"}'.encode("latin-1"), "not UTF-8: byte 0xe9"),
    _raw("utf_16", '{"prompt": "p"}'.encode("utf-16"), "not UTF-8: byte 0xff"),
    _raw("overlong", b'{"prompt": "\xc0\xaf"}', "not UTF-8: byte 0xc0"),
    _raw("cesu", b'{"prompt": "\xed\xa0\xbd\xed\xb8\x80"}', "not UTF-8: byte 0xed"),
    _raw("deep", b'{"prompt": ' + b"[" * 40 + b"]" * 40 + b"}", "nested more than 16 levels deep"),
    _raw("abyss", b'{"prompt": ' + b"[" * 100_000, "nested more than 16 levels deep"),
    _raw("long_row", b'{"prompt": "' + b"x" * (4 << 20) + b'"}', "over 4,194,304 bytes"),
)
_NO_ROW = (
    _row("a_list", ["p", "a", "b"], "expected an object, got a list"),
    _row("a_number", 7, "expected an object, got 7"),
    _row("null_row", None, "expected an object, got null"),
    _row("a_text", "row", 'expected an object, got "row"'),
)
_FIELDS = (
    _row("null_answer", _good(chosen=None), 'field "chosen": expected text or messages, got null'),
    _row("number_answer", _good(rejected=3), 'field "rejected": expected text or messages, got 3'),
    _row("true_prompt", _good(prompt=True), 'field "prompt": expected text or messages, got true'),
    _row("object_answer", _good(chosen={"text": "a"}), "expected text or messages, got an object"),
    _row("no_chosen", _without("chosen"), 'field "chosen": missing'),
    _row("no_rejected", _without("rejected"), 'field "rejected": missing'),
    _row("misspelt", {**_without("chosen"), "choosen": "a"}, 'field "chosen": missing'),
    _row("text_margin", _good(margin="big"), 'field "margin": expected a number, got "big"'),
    _row("large_margin", _good(margin=2**60), 'field "margin": expected an integer up to'),
    _row("negative_weight", _good(weight=-1), 'field "weight": expected at least 0, got -1'),
    _row("other_split", _good(split="dev"), 'field "split": expected one of train, heldout'),
    _row("blank_prompt_id", _good(prompt_id=" "), 'field "prompt_id": expected text, got " "'),
    _row("no_messages", _good(prompt=[]), "an empty list"),
    _row("other_role", _good(prompt=[{"role": "bot", "content": "x"}]), 'role is "bot"'),
    _row("no_content", _good(prompt=[{"role": "user"}]), "message 1: expected"),
    _row(
        "null_content",
        _good(prompt=[{"role": "user", "content": None}]),
        "message 1: content: expected text, got null",
    ),
    _row(
        "parts_as_content",
        _good(prompt=[{"role": "user", "content": [{"type": "text", "text": "p"}]}]),
        "message 1: content: expected text, got a list",
    ),
    _row("mixed_sides", _good(chosen=[{"role": "assistant", "content": "a"}]), "one is text"),
    _row(
        "answer_by_user",
        _good(
            chosen=[{"role": "user", "content": "a"}], rejected=[{"role": "user", "content": "b"}]
        ),
        "a single assistant message",
    ),
)
_FORMATS = (
    _of("own_wrong_id", OWN, {"pair_id": "1ec0ffeeec0ffeee"}, 'field "pair_id": expected'),
    _of("own_unknown", OWN, {"mood": "grim"}, 'field "mood": unknown; preferences have pair_id'),
    _of("vote_unknown", VOTES, {"votes": ["left"]}, 'field "votes": expected one of a, b, tie'),
    _of("votes_unequal", VOTES, {"votes": ["a", "b"]}, "found 2 votes and 1 workers"),
    _of(
        "votes_twice", VOTES, {"votes": ["a", "b"], "workers": ["x", "x"]}, "a worker occurs twice"
    ),
    _of("votes_nameless", VOTES, {"workers": [" "]}, 'field "workers": expected a list of names'),
    _of("scores_short", SCORED, {"scores": [1]}, "2 responses and 1 scores"),
    _of(
        "scores_text", SCORED, {"scores": ["1", "0"]}, 'field "scores": expected a list of numbers'
    ),
    _of(
        "scores_huge",
        SCORED,
        {"scores": [10**400, 1]},
        'field "scores": expected an integer of at most',
    ),
    _of(
        "scores_far",
        SCORED,
        {"scores": [1.7e308, -1.7e308]},
        'field "scores": the difference between two',
    ),
    _of("scores_and_ranks", SCORED, {"ranks": [1, 2]}, 'expected either "scores" or "ranks"'),
    _of(
        "one_answer",
        SCORED,
        {"responses": ["a"], "scores": [1]},
        "1 responses",
        "expected equal numbers",
    ),
    _of("answers_null", SCORED, {"responses": ["a", None]}, "expected a list of texts"),
    _of("label_text", UNPAIRED, {"label": "good"}, 'field "label": expected true or false'),
    _of("task_empty", TASK, {"data": {"prompt": "p"}}, 'data: field "response_a": missing'),
    _of("task_result", TASK, {"annotations": [{"result": []}]}, "annotation 1: no pairwise"),
    _of("task_null", TASK, {"annotations": [{"result": [{"value": None}]}]}, "no pairwise"),
    _of(
        "task_choices",
        TASK,
        {"annotations": [{"result": [{"value": {"choices": None}}]}]},
        "annotation 1: no pairwise",
    ),
    _of(
        "hh_no_turn",
        {"chosen": "\n\nHuman: p\n\nAssistant: a", "rejected": "\n\nHuman: p\n\nAssistant: b"},
        {"chosen": "\n\nHuman: p", "rejected": "\n\nHuman: q"},
        "in common",
    ),
)


def _parquet(path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), path)


def _cut_parquet(path: Path) -> None:
    _parquet(path, {key: [row[key] for row in GOOD] for key in GOOD[0]})
    path.write_bytes(path.read_bytes()[:-40])


def _column_twice(path: Path) -> None:
    names = ["prompt", "chosen", "rejected", "chosen"]
    pq.write_table(pa.table([pa.array(["p"])] * 4, names=names), path)


def _latin_parquet(path: Path) -> None:
    buffers = pa.array(["café".encode("latin-1")], pa.binary()).buffers()
    text = pa.Array.from_buffers(pa.string(), 1, buffers)
    _parquet(path, {"prompt": ["p"], "chosen": text, "rejected": ["b"]})


def _late_parquet(path: Path) -> None:
    columns = {key: [row[key] for row in GOOD[:2]] for key in GOOD[0]}
    _parquet(path, {**columns, "when": pa.array([0, 2**62], pa.timestamp("us"))})


_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override '
    f'PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/><Override '
    f'PartName="/xl/sheet.xml" ContentType="{_TYPE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r" '
    f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets><sheet name="s" '
    'sheetId="1" r:id="r"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship '
    f'Id="r" Type="{_OFFICE}/worksheet" Target="sheet.xml"/></Relationships>',
}


def _texts(row: list[str]) -> str:
    cells = "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in row)
    return f"<row>{cells}</row>"


def write_workbook(path: Path, rows: list[str]) -> None:
    """A workbook of one sheet: a header and rows in its own XML, as no program would write them."""
    head = _texts(["prompt", "chosen", "rejected"])
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{head}{"".join(rows)}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**_PARTS, "xl/sheet.xml": sheet}.items():
            archive.writestr(name, content)


def _book(name: str, rows: list[str], *says: str) -> Case:
    return Case(name, lambda path: write_workbook(path, rows), says)


_GOOD_ROWS = [_texts([*row.values()]) for row in GOOD]
_BOOKS = (
    _book("wide.xlsx", ["<row>" + "<c/>" * 2_000_000 + "</row>"], "a row has over 16,384 cells"),
    _book(
        "far.xlsx",
        [f'<row r="{n}"><c r="XFD{n}" s="0"/></row>' for n in range(2, 1_000)],
        "over 2,000,000 empty cells",
    ),
    _book("gap.xlsx", ['<row r="1048576"><c/></row>'], "over 1,000,000 blank lines"),
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
    _bytes("bomb.jsonl.gz", _MIB_OF_BLANK * 257, "unpacks to over 268,435,456 bytes"),
    _bytes("bomb.json.gz", _MIB_OF_BLANK * 257, "unpacks to over 268,435,456 bytes"),
    _bytes("bomb.parquet.gz", _MIB_OF_BLANK * 257, "unpacks to over 268,435,456 bytes"),
    _bytes("blank.jsonl", good_lines() + b"\n" * 1_000_100, "over 1,000,000 blank lines"),
    _bytes(
        "blank.csv",
        b"prompt,chosen,rejected\np,a,b\n" + b"\n" * 1_000_100,
        "over 1,000,000 blank lines",
    ),
    _of(
        "many_votes",
        VOTES,
        {"votes": ["a"] * 20_000, "workers": [f"w{n}" for n in range(20_000)]},
        "found 20,000 votes on one pair, expected at most 1,000",
    ),
)
_CSV = b"prompt,chosen,rejected\np,a,b\n"
_FILES = (
    _bytes("empty.jsonl", b"", "no row to detect the format from"),
    _bytes("white.jsonl", b" \n\n\t\n", "no row to detect the format from"),
    _bytes("other_columns.jsonl", line({"question": "q", "answer": "a"}), "no known format"),
    _bytes("backwards.jsonl", '{"pro\u202empt": "p"}'.encode(), r"no known format (pro\u202empt)"),
    _bytes("red.jsonl", rb'{"pro\u001b[31mmpt": "p"}', r"no known format (pro\x1b[31mmpt)"),
    _bytes("data.docx", good_lines(), "unknown suffix"),
    _bytes("not_gzip.jsonl.gz", good_lines(), "damaged gzip file"),
    _bytes("cut.jsonl.gz", gzip.compress(good_lines(12))[:-20], "damaged gzip file"),
    _bytes("object.json", b'{"rows": []}', "expected a list of objects"),
    _bytes("items.json", b"[1]", "item 1: expected an object"),
    _bytes("open.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"}', "not JSON"),
    _bytes("lines.json", good_lines(), "looks like JSON Lines"),
    _bytes("long_row.csv", _CSV + b"p," + b"x," * (2 << 20) + b"b\n", "over 4,194,304 bytes"),
    _bytes("cells.csv", _CSV + b"p,a\n", ":3: 2 cells, expected 3"),
    _bytes("header_twice.csv", b"prompt,chosen,chosen\np,a,b\n", ":1: a column name occurs twice"),
    _bytes("quote.csv", _CSV + b'p,"a,b\n', "not CSV"),
    _bytes("latin.csv", _CSV + "p,café,b\n".encode("latin-1"), ":3: not UTF-8: byte 0xe9"),
    _bytes("not.parquet", b"PAR1 no, not really", "damaged Parquet file"),
    Case("cut.parquet", _cut_parquet, ("damaged Parquet file",)),
    Case(
        "null.parquet",
        lambda path: _parquet(path, {"prompt": ["p"], "chosen": [None], "rejected": ["b"]}),
        ("row 1", 'field "chosen": expected text or messages, got null'),
    ),
    Case("twice.parquet", _column_twice, ('column "chosen": occurs twice',)),
    Case("latin.parquet", _latin_parquet, ("row 1", 'field "chosen": not UTF-8: byte 0xe9 at 4')),
    Case("late.parquet", _late_parquet, ("row 2", 'field "when": cannot be read')),
    Case("no_file.jsonl", lambda path: None, ("no such file",)),
    Case("no_data", lambda path: path.mkdir(), ("no data file in this folder",)),
)
_TABLES = (
    _bytes("cells.tsv", _CSV.replace(b",", b"\t") + b"p\ta\n", ":3: 2 cells, expected 3"),
    _bytes("commas.tsv", _CSV, "no known format (prompt,chosen,rejected)"),
    _bytes("not.xlsx", b"PK no, not really", "damaged workbook"),
    _bytes("half.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"} {}]', "not JSON"),
    _bytes(
        "after.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"}] x', "not JSON: Extra data"
    ),
    _bytes(
        "alpaca_eval.jsonl",
        line({"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1}),
        "as in alpaca_eval: --map alpaca_eval",
    ),
)
DAMAGED = (
    *_NOT_JSON,
    *_NO_ROW,
    *_FIELDS,
    *_FORMATS,
    *_NOBODY_WAITS,
    *_COSTLY,
    *_FILES,
    *_TABLES,
    *_BOOKS,
)


def _odd(name: str, **changes: Any) -> Case:
    """Twelve good rows, one of them odd."""
    return _bytes(f"{name}.jsonl", good_lines(12) + line({**GOOD[0], "prompt": "odd?", **changes}))


def _good_parquet(path: Path) -> None:
    _parquet(path, {key: [row[key] for row in GOOD] for key in GOOD[0]})


def _nested_parquet(path: Path) -> None:
    said = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    columns = {
        key: [[{"role": role, "content": row[key]}] for row in GOOD] for key, role in said.items()
    }
    _parquet(path, columns)


_HEADER = "prompt,chosen,rejected\n"
_CELLS = "".join(f"q{n},a{n},b{n}\n" for n in range(12))
_QUOTED = "".join(f'q{n},"a\n{n}","b"\n' for n in range(12))
_PAIR_ESCAPE = rb'{"prompt": "\ud83d\ude00", "chosen": "a b", "rejected": "c"}'
_HALVES = gzip.compress(good_lines(6)) + gzip.compress(b"".join(map(line, GOOD[6:])))

SOUND = (
    _bytes("bom.jsonl", b"\xef\xbb\xbf" + good_lines(12)),
    _bytes("windows_lines.jsonl", good_lines(12).replace(b"\n", b"\r\n")),
    _bytes("no_last_newline.jsonl", good_lines(12).rstrip(b"\n")),
    _bytes("blank_lines.jsonl", good_lines(12).replace(b"\n", b"\n\n")),
    _bytes("spaces.jsonl", b"  " + good_lines(12)),
    _bytes("escapes.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in GOOD)),
    _bytes("pair_escape.jsonl", good_lines(12) + _PAIR_ESCAPE),
    _bytes("packed.jsonl.gz", gzip.compress(good_lines(12))),
    _bytes("two_members.jsonl.gz", _HALVES),
    _bytes("list.json", json.dumps(GOOD, indent=2).encode()),
    _bytes("bom.csv", ("\ufeff" + _HEADER + _CELLS).encode()),
    _bytes("good.tsv", (_HEADER + _CELLS).replace(",", "\t").encode()),
    _bytes("spaced_list.json", b" \n" + json.dumps(GOOD).encode() + b"\n" * 1000),
    _bytes("newline_in_cell.csv", (_HEADER + _QUOTED).encode()),
    Case("good.parquet", _good_parquet),
    Case("nested.parquet", _nested_parquet),
    _book("styled.xlsx", [*_GOOD_ROWS, *["<row>" + '<c s="0"/>' * 50 + "</row>"] * 2_000]),
    _odd("curly_quotes", chosen="It’s “fine” – really…"),
    _odd("emoji", chosen="👩‍👩‍👧‍👦 🇳🇵 ☕️"),
    _odd("other_scripts", chosen="Привет, 你好, مرحبا, नमस्ते, สวัสดี"),
    _odd("right_to_left", chosen="שלום \u200f(hello)\u200e"),
    _odd("decomposed", chosen="La\u0300-bas, l\u2019e\u0301te\u0301"),
    _odd("full_width", chosen="\uff29t is \uff12\uff10 days\uff01"),
    _odd("zero_width", chosen="I\u200bt is 2\u20600 da\ufeffys"),
    _odd("overrides", chosen="It is \u202e02\u202c days"),
    _odd("blank_to_the_eye", chosen="\u2800\u3164"),
    _odd("a_tie", label=0.5),
    _odd("accents", chosen="Ångström, naïve, São Paulo, ÂME, Ã"),
    _odd("more_columns", meta={"a": [1, {"b": None}]}, score=0.5),
    _odd("long_answer", chosen="word " * 100_000),
    _odd("deep_meta", meta=[[[[[[["x"]]]]]]]),
    _odd("messages", prompt=[{"role": "system", "content": ""}, {"role": "user", "content": "x"}]),
)  # fmt: skip


def write_all(folder: Path) -> None:
    """Writes every file into `damaged` and `sound` below the folder."""
    for kind, cases in (("damaged", DAMAGED), ("sound", SOUND)):
        target = folder / kind
        target.mkdir(parents=True, exist_ok=True)
        for case in cases:
            case.write(target / case.name)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
