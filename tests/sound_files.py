"""Over thirty odd but sound files, made here and not collected."""

import gzip
import json
from pathlib import Path
from typing import Any

from tests.file_cases import GOOD, Case, book, cells, good_lines, holds, line, parquet

_GOOD_ROWS = [cells([*row.values()]) for row in GOOD]


def _odd(name: str, **changes: Any) -> Case:
    """Twelve good rows, one of them odd."""
    return holds(f"{name}.jsonl", good_lines(12) + line({**GOOD[0], "prompt": "odd?", **changes}))


def _good_parquet(path: Path) -> None:
    parquet(path, {key: [row[key] for row in GOOD] for key in GOOD[0]})


def _nested_parquet(path: Path) -> None:
    said = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    columns = {
        key: [[{"role": role, "content": row[key]}] for row in GOOD] for key, role in said.items()
    }
    parquet(path, columns)


_HEADER = "prompt,chosen,rejected\n"
_CELLS = "".join(f"q{n},a{n},b{n}\n" for n in range(12))
_QUOTED = "".join(f'q{n},"a\n{n}","b"\n' for n in range(12))
_PAIR_ESCAPE = rb'{"prompt": "\ud83d\ude00", "chosen": "a b", "rejected": "c"}'
_HALVES = gzip.compress(good_lines(6)) + gzip.compress(b"".join(map(line, GOOD[6:])))

SOUND = (
    holds("bom.jsonl", b"\xef\xbb\xbf" + good_lines(12)),
    holds("windows_lines.jsonl", good_lines(12).replace(b"\n", b"\r\n")),
    holds("no_last_newline.jsonl", good_lines(12).rstrip(b"\n")),
    holds("blank_lines.jsonl", good_lines(12).replace(b"\n", b"\n\n")),
    holds("spaces.jsonl", b"  " + good_lines(12)),
    holds("escapes.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in GOOD)),
    holds("pair_escape.jsonl", good_lines(12) + _PAIR_ESCAPE),
    holds("packed.jsonl.gz", gzip.compress(good_lines(12))),
    holds("two_members.jsonl.gz", _HALVES),
    holds("list.json", json.dumps(GOOD, indent=2).encode()),
    holds("lines.json", good_lines(12)),
    holds("bom.csv", ("\ufeff" + _HEADER + _CELLS).encode()),
    holds("good.tsv", (_HEADER + _CELLS).replace(",", "\t").encode()),
    holds("spaced_list.json", b" \n" + json.dumps(GOOD).encode() + b"\n" * 1000),
    holds("newline_in_cell.csv", (_HEADER + _QUOTED).encode()),
    Case("good.parquet", _good_parquet),
    Case("nested.parquet", _nested_parquet),
    book("styled.xlsx", [*_GOOD_ROWS, *["<row>" + '<c s="0"/>' * 50 + "</row>"] * 2_000]),
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
