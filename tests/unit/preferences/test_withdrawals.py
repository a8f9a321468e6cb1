"""Tombstones: what they keep away, what they say, and which files of them are refused."""

import hashlib
import hmac
from pathlib import Path

import pytest

from preferences.records import Judgment
from preferences.withdrawals import (
    Withdrawals,
    WithdrawalsError,
    load_withdrawals,
    tombstone,
)

SALT = "5a" * 16


def withdrawn(*what: tuple[str, str]) -> Withdrawals:
    return Withdrawals(frozenset(tombstone(kind, value, SALT) for kind, value in what))


def judgment(annotator: str, kind: str = "human", reason: str | None = None) -> Judgment:
    return Judgment(
        judgment_id="j", pair_id="p", round="r1", annotator_id=annotator, kind=kind, choice="a",
        revision=1, reason=reason,
    )  # fmt: skip


def test_a_tombstone_is_an_hmac_of_kind_and_value() -> None:
    expected = hmac.new(b"\x5a" * 16, b"annotator\x00ann", hashlib.sha256).hexdigest()[:32]

    assert tombstone("annotator", "ann", SALT).hash == expected


@pytest.mark.parametrize(
    ("what", "row"),
    [
        (("prompt", "p1"), {"prompt_id": "p1", "prompt": "hello"}),
        (("text", "hello"), {"prompt_id": "p2", "prompt": "hello"}),
        (("text", "bye"), {"prompt_id": "p1", "prompt": "x", "response": "bye"}),
        (("text", "no"), {"prompt_id": "p1", "prompt": "x", "chosen": "yes", "rejected": "no"}),
        (("text", "a document"), {"text": "a document"}),
        (("text", '[{"role":"user","content":"hi"}]'),
         {"prompt_id": "p1", "prompt": [{"role": "user", "content": "hi"}]}),
        (("text", "hi"), {"prompt_id": "p1", "prompt": [{"role": "user", "content": "hi"}]}),
        (("text", "hey"), {"prompt_id": "p1", "messages": [
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hey"}]}),
        (("source", "mine.jsonl"), {"prompt_id": "p1", "prompt": "x", "source": "mine.jsonl"}),
        (("source", "llm"), {"prompt_id": "p1", "prompt": "x", "source": "human+llm"}),
    ],
)  # fmt: skip
def test_a_row_with_a_tombstone_is_left_out_and_others_stay(
    what: tuple[str, str], row: dict[str, object]
) -> None:
    other = {"prompt_id": "other", "prompt": "other", "response": "o", "source": "human"}

    assert withdrawn(what).kept([row, other]) == [other]
    assert withdrawn().kept([row, other]) == [row, other]


def test_judgments_go_by_annotator_by_kind_and_by_their_reason() -> None:
    given = [
        judgment("ann"),
        judgment("bob"),
        judgment("cy", kind="llm"),
        judgment("dee", reason="as Ann said"),
    ]
    gone = withdrawn(("annotator", "ann"), ("source", "llm"), ("text", "as Ann said"))

    assert [one.annotator_id for one in gone.kept_judgments(given)] == ["bob"]


def test_a_file_is_read_back_and_blank_lines_are_nothing(tmp_path: Path) -> None:
    stones = {tombstone("annotator", "ann", SALT), tombstone("text", "x", "0b" * 16)}
    path = tmp_path / "w.jsonl"
    path.write_text("\n" + "".join(one.line() for one in stones))

    assert load_withdrawals(path).tombstones == stones
    assert load_withdrawals(path).holds("text", "x")
    assert load_withdrawals(tmp_path / "none.jsonl").tombstones == frozenset()


@pytest.mark.parametrize(
    "line",
    [
        "ann",
        '{"kind": "annotator", "salt": "5a"}',
        '{"kind": "person", "salt": "5a", "hash": "00"}',
        '{"kind": "annotator", "salt": "zz", "hash": "00"}',
        '{"kind": "annotator", "salt": "5a", "hash": "00", "name": "ann"}',
        '{"kind": "annotator", "salt": "5a", "hash": ["00"]}',
    ],
)
def test_a_damaged_line_is_refused_because_it_might_let_something_back(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(f"\n{line}\n")

    with pytest.raises(WithdrawalsError, match=r"w.jsonl:2: expected a tombstone"):
        load_withdrawals(path)


def test_a_file_in_another_encoding_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_bytes(b"\n\xff\n")

    with pytest.raises(WithdrawalsError, match=r"w.jsonl: expected UTF-8, found byte 0xff at 1$"):
        load_withdrawals(path)


@pytest.mark.parametrize("forgotten", ["Jos\u00e9", "Jose\u0301"])
def test_a_name_goes_in_either_spelling_of_unicode(forgotten: str) -> None:
    given = [judgment("Jos\u00e9"), judgment("Jose\u0301"), judgment("Jose")]
    gone = withdrawn(("annotator", forgotten))
    assert [one.annotator_id for one in gone.kept_judgments(given)] == ["Jose"]
