"""A JSON list is read item by item, whatever the size of the pieces."""

import json
import random

import pytest

from preferences.formats import json_items
from preferences.formats.files import read_records
from preferences.reader import Problems

ROWS = [{"n": n, "text": 'é"\\ [{,' * (n % 7), "deep": [[{"a": [n]}]]} for n in range(50)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 18])
@pytest.mark.parametrize("indent", [None, 1])
def test_items_are_the_same_in_pieces_of_any_size(tmp_path, monkeypatch, chunk, indent):
    monkeypatch.setattr(json_items, "_CHUNK", chunk)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(ROWS, indent=indent, ensure_ascii=False), encoding="utf-8")
    rows = list(read_records(path))
    assert [row.row for row in rows] == ROWS
    assert rows[7].where == f"{path} item 8"


@pytest.mark.parametrize("chunk", [1, 5, 1 << 18])
@pytest.mark.parametrize(
    ("content", "rows", "problem"),
    [
        (b"[]", 0, None),
        (b"\xef\xbb\xbf [ ] \n", 0, None),
        (b'[{"a": 1},]', 1, "not JSON: Expecting value at character 11"),
        (b'[{"a": 1} {"b": 2}]', 1, "not JSON: Expecting ',' delimiter at character 11"),
        (b'[{"a": 1}', 1, "not JSON: Expecting ',' delimiter at character 10"),
        (b'[{"a": 1}] []', 1, "not JSON: Extra data at character 12"),
        (b'[{"a": 1}, 12345, {"b": 2}]', 2, " item 2: expected an object, got 12345"),
        (b'[{"a": "\xff"}]', 0, "not UTF-8: byte 0xff at 9"),
        (b'{"a": [1]}', 0, "expected a list of objects"),
        (b'{"a": [1]}\n{"a": 2}', 2, None),
        (b'{"a": [1]}\n\n{"a": 2\n', 1, ":3: not JSON"),
        (b"", 0, "not JSON: Expecting value at character 1"),
        (b'[{"a": NaN}]', 0, "NaN is not a JSON number"),
        (b"[" * 100_000, 0, "nested more than 16 levels deep"),
    ],
)
def test_damage_has_its_place_in_pieces_of_any_size(
    tmp_path, monkeypatch, chunk, content, rows, problem
):
    monkeypatch.setattr(json_items, "_CHUNK", chunk)
    path, problems = tmp_path / "x.json", Problems()
    path.write_bytes(content)
    assert len(list(read_records(path, problems))) == rows
    assert [problem in said for said in problems.shown] == ([True] if problem else [])


def test_only_a_piece_of_the_file_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(json_items, "_CHUNK", 1000)
    held = []
    read = json_items._Text._read

    def watched(text):
        read(text)
        held.append(len(text._held))

    monkeypatch.setattr(json_items._Text, "_read", watched)
    generator = random.Random(0)
    rows = [{"t": "x" * generator.randrange(300)} for _ in range(2000)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(rows))
    assert [row.row for row in read_records(path)] == rows
    assert max(held) < 2000 < path.stat().st_size / 100
