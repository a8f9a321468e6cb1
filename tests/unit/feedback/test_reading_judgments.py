"""Files of judgments and of pairs are read, and what is wrong in them is named with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from feedback.judgments import judgment_from_row, read_judgments, read_pairs, to_lines
from preferences.loading import load_judgments
from preferences.records import Judgment, JudgmentError
from tests.unit.feedback.judged_pairs import a_judgment, a_pair, comparison_of


@pytest.mark.parametrize("wrong", [None, 0, 1, "false"])
def test_a_flag_that_is_not_true_or_false_is_named_with_its_line(
    wrong: object, tmp_path: Path
) -> None:
    path = tmp_path / "comparisons.jsonl"
    path.write_text(to_lines([comparison_of(a_pair()), comparison_of(a_pair(), finished_b=wrong)]))
    with pytest.raises(JudgmentError) as caught:
        read_pairs(path)
    assert str(caught.value) == f"{path}:2: finished_b is {wrong!r}, expected true or false"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reason", "un\x00readable"),
        ("reason", 7),
        ("latency_ms", -1),
        ("latency_ms", True),
    ],
)
def test_a_reason_or_time_that_none_can_be_is_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    path = tmp_path / "judgments.jsonl"
    path.write_text(to_lines([a_judgment(a_pair()).to_row() | {name: value}]), encoding="utf-8")
    with pytest.raises(JudgmentError, match=rf"judgments.jsonl:1: {name} is .*, expected "):
        read_judgments(path)


def test_a_judgment_survives_the_file(tmp_path: Path) -> None:
    written = [
        a_judgment(a_pair()),
        a_judgment(a_pair(), choice="skip", strength=None, reason="line\u2028break", latency_ms=7),
    ]
    path = tmp_path / "judgments.jsonl"
    path.write_text(to_lines([one.to_row() for one in written]), encoding="utf-8")
    assert read_judgments(path) == written


def test_an_order_that_a_file_leaves_out_is_not_known(tmp_path: Path) -> None:
    """Some other program wrote it, with the mark that programs on Windows put first."""
    row = a_judgment(a_pair()).to_row()
    del row["shown_order"], row["judgment_id"]
    path = tmp_path / "judgments.jsonl"
    path.write_text(to_lines([row]), encoding="utf-8-sig")
    (found,) = read_judgments(path)
    assert (found.shown_order, found.choice) == (None, row["choice"])
    assert Judgment.from_row({**row, "judgment_id": "1"}).shown_order is None, "in the gate as well"


def test_a_strength_that_a_table_with_gaps_holds_as_a_fraction_is_read_as_the_gate_does(
    tmp_path: Path,
) -> None:
    """pandas writes a column of 1 to 4 and nothing as 1.0 to 4.0 and null."""
    rows = [a_judgment(a_pair(), strength=strength).to_row() for strength in (2.0, None)]
    path = tmp_path / "judgments.jsonl"
    path.write_text(to_lines(rows), encoding="utf-8")
    found = read_judgments(path)
    path.write_text(to_lines([one.to_row() for one in found]), encoding="utf-8")
    assert [one.strength for one in load_judgments(path)] == [2, None]
    path.write_text(to_lines([rows[0] | {"strength": 2.5}]), encoding="utf-8")
    with pytest.raises(JudgmentError, match=r":1: strength is 2\.5, expected 1 to 4 or null"):
        read_judgments(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choice": "left"}, "choice is 'left', expected one of a, b, tie, both_bad, skip"),
        ({"kind": "alien"}, "kind is 'alien'"),
        ({"strength": 5}, "strength is 5, expected 1 to 4 or null"),
        ({"strength": True}, "strength is True"),
        ({"choice": "tie"}, "strength 3 with choice 'tie'"),
        ({"revision": 0}, "revision is 0"),
        ({"revision": 1 << 31}, "revision is 2147483648"),
        ({"latency_ms": 10**30}, "latency_ms is 1"),
        ({"pair_id": None}, "pair_id is None, expected a text"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_a_wrong_value_is_refused_with_file_and_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    row = a_judgment(a_pair()).to_row()
    path = tmp_path / "judgments.jsonl"
    path.write_text(to_lines([row, row | change]), encoding="utf-8")
    with pytest.raises(JudgmentError) as refused:
        read_judgments(path)
    assert f"{path}:2" in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", ":1: not JSON"),
        (b"[]", "list, expected an object"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b'{"latency_ms": NaN}', r":1: not JSON \(NaN is not a JSON number\)"),
        (b'{"reason": ' + 70 * b"[" + 70 * b"]" + b"}", ":1: nested more than 64 levels deep"),
        (b'{"strength": ' + 5_000 * b"1" + b"}", ":1: expected a number of fewer digits"),
    ],
)
def test_a_file_that_is_no_json_lines_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "judgments.jsonl"
    path.write_bytes(content)
    with pytest.raises(JudgmentError, match=message):
        read_judgments(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JudgmentError, match=r"nowhere\.jsonl: no such file"):
        read_pairs(tmp_path / "nowhere.jsonl")


def test_a_judgment_without_an_id_gets_one() -> None:
    row = a_judgment(a_pair()).to_row()
    id_written = row.pop("judgment_id")
    assert judgment_from_row(row).judgment_id == id_written


def test_lines_are_utf8_and_not_escaped() -> None:
    assert to_lines([{"b": "Zürich", "a": 1}]) == '{"b": "Zürich", "a": 1}\n'
    assert json.loads(to_lines([{"x": None}])) == {"x": None}


@pytest.mark.parametrize(
    "time", [5, True, "", "yesterday", "1969-12-31T23:59:59+00:00", "2024-13-01", ["2024-01-01"]]
)
def test_a_time_that_is_none_or_before_all_clocks_is_refused(time: Any) -> None:
    row = Judgment.of(
        a_pair(), annotator_id="ana", kind="human", annotator_version="g", choice="a"
    ).to_row()
    assert judgment_from_row(row | {"created_at": "2024-01-01T00:00:00Z"}).choice == "a"
    with pytest.raises(JudgmentError, match="created_at is"):
        judgment_from_row(row | {"created_at": time})
