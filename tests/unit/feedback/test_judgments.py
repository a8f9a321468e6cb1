"""Judgments and pairs: their form on disk, their ids, and the rule that choices name answers."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from feedback.formats.label_studio import is_export, read_export
from feedback.judgments import Pair, judgment_from_row, read_judgments, read_pairs, to_lines
from preferences.records import (
    Judgment,
    JudgmentError,
    JudgmentMismatchError,
    latest,
    oriented,
    pair_id,
    text_hash,
)


def a_pair(a: str = "Hello Ana.", b: str = "Go away.", key: str = "r1") -> Pair:
    return Pair(
        pair_id=pair_id("Hi, this is Ana.", a, b),
        round=key,
        prompt="Hi, this is Ana.",
        response_a=a,
        response_b=b,
    )


def a_judgment(pair: Pair, **changes: Any) -> Judgment:
    content: dict[str, Any] = {
        "annotator_id": "ana",
        "kind": "human",
        "annotator_version": "v1",
        "choice": "a",
        "strength": 3,
        "shown_order": "AB",
    }
    return Judgment.of(pair, **(content | changes))


def test_the_pair_id_is_the_hash_that_the_contract_describes() -> None:
    text = '["Où ?","a","b"]'.encode()
    assert pair_id("Où ?", "b", "a") == hashlib.sha256(text).hexdigest()[:16]


def test_a_pair_keeps_its_id_when_its_responses_trade_places() -> None:
    assert a_pair("x", "y").pair_id == a_pair("y", "x").pair_id


def test_a_pair_from_a_comparison_holds_nothing_of_the_policies() -> None:
    pair = a_pair()
    row = {
        "pair_id": pair.pair_id,
        "round": "r1",
        "prompt_id": "p7",
        "prompt": pair.prompt,
        "response_a": pair.response_a,
        "response_b": pair.response_b,
        "policy_a": "SECRET-A",
        "policy_b": "SECRET-B",
    }
    assert Pair.from_json(row) == pair
    assert "SECRET" not in repr(Pair.from_json(row))


def comparison_of(pair: Pair, **more: Any) -> dict[str, Any]:
    names = ("pair_id", "round", "prompt", "response_a", "response_b")
    return {name: getattr(pair, name) for name in names} | more


@pytest.mark.parametrize(
    "prompt",
    [None, 1, {}, [1], [["user", "x"]], "\ud800", [{"role": "user", "content": "\udfff"}]],
)
def test_a_prompt_that_cannot_be_shown_is_refused(prompt: Any) -> None:
    with pytest.raises(JudgmentError, match=r"prompt (is|contains)"):
        Pair.from_json(comparison_of(a_pair(), prompt=prompt))


def test_a_comparison_without_flags_has_finished_responses() -> None:
    assert (Pair.from_json(comparison_of(a_pair())).finished_a, a_pair().finished_b) == (True, True)
    cut = Pair.from_json(comparison_of(a_pair(), finished_a=False, finished_b=True))
    assert (cut.finished_a, cut.finished_b) == (False, True)
    assert cut.pair_id == a_pair().pair_id


@pytest.mark.parametrize("wrong", [None, 0, 1, "false"])
def test_a_flag_that_is_not_true_or_false_is_named_with_its_line(
    wrong: object, tmp_path: Path
) -> None:
    path = tmp_path / "comparisons.jsonl"
    path.write_text(to_lines([comparison_of(a_pair()), comparison_of(a_pair(), finished_b=wrong)]))
    with pytest.raises(JudgmentError) as caught:
        read_pairs(path)
    assert str(caught.value) == f"{path}:2: finished_b is {wrong!r}, expected true or false"


def test_a_pair_whose_id_is_not_that_of_its_content_is_refused() -> None:
    row = {
        "pair_id": "0" * 16,
        "round": "r1",
        "prompt": "p",
        "response_a": "a",
        "response_b": "b",
    }
    with pytest.raises(JudgmentError, match=r"expected '.{16}' for this content"):
        Pair.from_json(row)


def test_the_keys_of_a_row_come_in_the_order_of_the_contract() -> None:
    row = a_judgment(a_pair()).to_row()
    assert list(row) == [
        "judgment_id",
        "pair_id",
        "round",
        "annotator_id",
        "kind",
        "annotator_version",
        "choice",
        "strength",
        "shown_order",
        "revision",
    ]


def test_the_same_judgment_has_the_same_id_and_any_other_another() -> None:
    pair = a_pair()
    first = a_judgment(pair)
    assert first.judgment_id == a_judgment(pair).judgment_id
    others = [
        a_judgment(pair, choice="b"),
        a_judgment(pair, strength=2),
        a_judgment(pair, annotator_id="ben"),
        a_judgment(pair, shown_order="BA"),
        a_judgment(pair, revision=2),
        a_judgment(a_pair(key="r2")),
    ]
    assert len({first.judgment_id, *(other.judgment_id for other in others)}) == 7


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


_SIDES = {"prompt": "p", "left": "a", "right": "b"}


def _task(**annotation: Any) -> bytes:
    result = [{"from_name": "pref", "value": {"selected": "left"}}]
    return json.dumps([{"data": _SIDES, "annotations": [{"result": result} | annotation]}]).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[\n{"data": ', ":2: not JSON"),
        (b"[" * 100_000, ": nested more than 64 levels deep"),
        (b"[" + 5_000 * b"1" + b"]", ": expected a number of fewer digits"),
        (b"[NaN]", ": not JSON .NaN is not a JSON number"),
        (b"[\xff]", ": not UTF-8 at byte 1"),
        (b'["\\ud800"]', ": task 1 has no data"),
        (_task().replace(b'"a"', b'"\\ud800"'), ": contains half a surrogate pair"),
        (_task(lead_time=10**300), "task 1: lead_time is 1"),
        (_task(lead_time=-1), "task 1: lead_time is -1"),
    ],
)
def test_a_file_that_is_no_export_of_label_studio_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "export.json"
    path.write_bytes(content)
    with pytest.raises(JudgmentError, match=message) as refused:
        read_export(path, "r1")
    assert str(refused.value).startswith(str(path))


def test_a_prompt_that_only_begins_like_messages_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    for prompt in ("[" * 100_000, "[" + 5_000 * "1" + "]", "[not messages"):
        path.write_bytes(_task().replace(b'"p"', json.dumps(prompt).encode()))
        (judgment,) = read_export(path, "r1")
        assert judgment.pair_id == pair_id(prompt, "a", "b")


def test_a_rating_that_is_none_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    for rating, strength in ((True, None), ("2", None), (9, None), (3, 3)):
        stars = {"from_name": "strength", "value": {"rating": rating}}
        chosen = {"from_name": "pref", "value": {"selected": "right"}}
        path.write_bytes(_task(result=[chosen, stars]))
        (judgment,) = read_export(path, "r1")
        assert (judgment.choice, judgment.strength) == ("b", strength)


@pytest.mark.parametrize("reads", [is_export, lambda path: read_export(path, "r1"), read_judgments])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, reads: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(JudgmentError, match=f"{name}: is no regular file"):
            reads(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JudgmentError, match=r"nowhere\.jsonl: no such file"):
        read_pairs(tmp_path / "nowhere.jsonl")


def test_a_judgment_without_an_id_gets_one() -> None:
    row = a_judgment(a_pair()).to_row()
    id_written = row.pop("judgment_id")
    assert judgment_from_row(row).judgment_id == id_written


def test_a_judgment_turns_round_with_the_responses() -> None:
    given = a_judgment(a_pair("good", "bad"), answer_a=text_hash("good"))
    turned = oriented(given, a_pair("bad", "good"))
    assert (turned.choice, turned.shown_order, turned.strength) == ("b", "BA", 3)
    assert turned.answer_a == text_hash("bad")
    assert oriented(turned, a_pair("good", "bad")) == given


def test_a_judgment_of_other_responses_is_refused() -> None:
    given = a_judgment(a_pair("good", "bad"), answer_a=text_hash("third"))
    with pytest.raises(JudgmentMismatchError, match="answer_a is neither response of pair"):
        oriented(given, a_pair("good", "bad"))


def test_the_latest_revision_counts_whatever_the_order() -> None:
    first, second = a_judgment(a_pair()), a_judgment(a_pair(), choice="b", revision=2)
    assert latest([second, first]) == [second]
    assert latest([first, second]) == [second]


def test_a_judgment_in_another_round_stands_beside_the_first_only_per_round() -> None:
    first, other = a_judgment(a_pair()), a_judgment(a_pair(key="r2"), choice="b", revision=2)
    assert latest([first, other], per_round=True) == [first, other]
    assert latest([first, other]) == [other]


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
