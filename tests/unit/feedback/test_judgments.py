"""Judgments and pairs: their content, their ids, and the rule that choices name answers."""

import hashlib
from typing import Any

import pytest

from feedback.judgments import Pair
from preferences.records import (
    JudgmentError,
    JudgmentMismatchError,
    latest,
    oriented,
    pair_id,
    text_hash,
)
from tests.unit.feedback.judged_pairs import a_judgment, a_pair, comparison_of


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


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        1,
        {},
        [1],
        ["hello"],
        [["user", "x"]],
        "\ud800",
        [{"role": "user", "content": "\udfff"}],
    ],
)
def test_a_prompt_that_cannot_be_shown_is_refused(prompt: Any) -> None:
    with pytest.raises(JudgmentError, match=r"prompt (is|contains)"):
        Pair.from_json(comparison_of(a_pair(), prompt=prompt))


def test_a_comparison_without_flags_has_finished_responses() -> None:
    assert (Pair.from_json(comparison_of(a_pair())).finished_a, a_pair().finished_b) == (True, True)
    cut = Pair.from_json(comparison_of(a_pair(), finished_a=False, finished_b=True))
    assert (cut.finished_a, cut.finished_b) == (False, True)
    assert cut.pair_id == a_pair().pair_id


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
