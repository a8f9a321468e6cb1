import hashlib

from hypothesis import given
from hypothesis import strategies as st

from preferences.records import Comparison, Preference, pair_id

MESSAGES = [{"role": "user", "content": "hé"}]


def test_a_pair_id_is_the_documented_hash():
    expected = hashlib.sha256('["hé","a","b"]'.encode()).hexdigest()[:16]
    assert pair_id("hé", "b", "a") == expected
    content = '[[{"role":"user","content":"hé"}],"a","b"]'
    assert pair_id(MESSAGES, "a", "b") == hashlib.sha256(content.encode()).hexdigest()[:16]


@given(st.text(), st.text(), st.text())
def test_swapped_responses_are_the_same_pair(prompt, a, b):
    assert pair_id(prompt, a, b) == pair_id(prompt, b, a)


def test_rows_keep_the_key_order_of_the_contract():
    preference = Preference(
        pair_id="1", prompt_id="2", prompt=MESSAGES, chosen="3", rejected="4", margin=0.5
    )
    assert list(preference.to_row()) == [
        "pair_id", "prompt_id", "prompt", "chosen", "rejected", "chosen_finished",
        "rejected_finished", "margin", "weight", "source", "round", "split",
    ]  # fmt: skip
    assert Preference.from_row(preference.to_row()) == preference
    comparison = Comparison(
        pair_id="1", round="r1", prompt_id="2", prompt="p", response_a="a", response_b="b",
        policy_a="x", policy_b="y",
    )  # fmt: skip
    assert list(comparison.to_row()) == [
        "pair_id", "round", "prompt_id", "prompt", "response_a", "response_b",
        "finished_a", "finished_b", "policy_a", "policy_b",
    ]  # fmt: skip
    assert Comparison.from_row(comparison.to_row()) == comparison


def test_s43_only_a_label_that_leaves_doubt_is_written():
    """So that files without ties are what they were before there were labels."""
    row = {"pair_id": "1", "prompt_id": "2", "prompt": "p", "chosen": "3", "rejected": "4"}
    sure, tie = Preference(**row), Preference(**row, label=0.5)
    assert "label" not in sure.to_row()
    assert tie.to_row() == {**sure.to_row(), "label": 0.5}
    versioned = Preference(**row, annotator_version="v1")
    assert versioned.to_row() == {**sure.to_row(), "annotator_version": "v1"}
    assert Preference.from_row(tie.to_row()).is_tie
    assert not Preference.from_row(sure.to_row()).is_tie
