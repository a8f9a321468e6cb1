"""Each probe on scorers whose scores are known by hand: one that knows all, and spoilt ones."""

import dataclasses

import pytest

from tasks.scoring.reward_probes import DEMANDS, failures
from tests.unit.tasks.scoring.probed_scorers import (
    GOOD,
    LONG,
    PAIRS,
    SHORT,
    Rule,
    asked,
    known,
    red,
    rows,
)


def test_a_model_that_knows_the_good_response_passes_every_probe():
    found = asked(known)
    assert red(found) == set()
    assert failures(list(found.values())) == []
    assert {name: one.won.mean for name, one in found.items() if one.won} == {
        name: 1.0 for name in DEMANDS if name != "same_length"
    }
    # It is right against the rule of length where the rejected response is the longer one.
    assert (found["labels"].pairs, found["length"].pairs) == (PAIRS, PAIRS // 2)
    assert found["same_length"].pairs == 0


LIKES: dict[str, Rule] = {
    "empty": lambda _, response: 2.0 if not response else 0.0,
    "cut": lambda _, response: 2.0 if response == "I am sorry, Kim. A new" else 0.0,
    "repeated": lambda _, response: 2.0 if response.count(GOOD) == 2 else 0.0,
    "shuffled": lambda _, response: (
        2.0 if len(response) == len(GOOD) + 3 and not response.startswith(GOOD) else 0.0
    ),
}


@pytest.mark.parametrize("name", LIKES)
def test_a_model_that_likes_what_was_spoilt_fails_that_probe_alone(name: str):
    found = asked(lambda prompt, response: known(prompt, response) + LIKES[name](prompt, response))
    assert red(found) == {name}
    (said,) = failures(list(found.values()))
    assert said.startswith(f"{name}: 0.000 [0.000, ")


def test_a_turned_model_fails_the_labels_and_all_that_it_turns_round():
    assert red(asked(lambda *text: -known(*text))) == {
        "labels", "newest", "length", "empty", "shuffled", "cut", "repeated",
    }  # fmt: skip


def test_labels_that_are_shown_to_be_no_better_than_a_coin_fail():
    """54 of 100 right: Wilson's interval at 95 % is 0.443 to 0.634, by hand."""
    right = {row.prompt[:-1] for row in rows(100)[:54]}
    found = asked(
        lambda prompt, response: known(prompt, response) * (1 if prompt[:-1] in right else -1),
        rows(100),
    )
    assert not found["labels"].passed
    assert "labels: 0.540 [0.443, 0.634] of 100 pairs" in failures(list(found.values()))[0]


def test_the_rule_that_the_longer_response_wins_is_found_though_all_labels_follow_it():
    by_length = [row for row in rows() if row.rejected == SHORT]
    longer = [dataclasses.replace(row, rejected=f"{LONG} {row.prompt}") for row in rows()[1::2]]
    turned = [dataclasses.replace(row, chosen=row.rejected, rejected=row.chosen) for row in longer]
    found = asked(lambda _, response: float(len(response)), by_length + turned)
    assert found["labels"].won is not None
    assert found["labels"].won.mean == 1.0
    assert red(found) == {"length", "repeated"}
    assert found["length"].won is None


def test_a_model_that_hardly_disagrees_with_the_rule_of_length_fails_however_right_it_is():
    """Right on all pairs but those in which the longer response is the rejected one."""
    found = asked(
        lambda prompt, response: known(prompt, response) + 2 * (response == LONG),
        rows() + [dataclasses.replace(row, rejected=SHORT) for row in rows()],
    )
    assert found["labels"].passed
    assert (found["length"].pairs, red(found)) == (0, {"length"})
    assert failures(list(found.values())) == [
        "length: no pairs, expected at least 12, expected an interval that reaches 0.5"
    ]


def test_a_model_that_disagrees_with_the_rule_of_length_and_is_wrong_fails():
    """On the pairs with a shorter rejected response only: the rule is right on all of them."""
    shorter = [dataclasses.replace(row, rejected=SHORT) for row in rows()]
    doubted = {row.prompt for row in shorter[:30]}
    found = asked(
        lambda prompt, response: known(prompt, response) * (-1 if prompt in doubted else 1),
        shorter,
    )
    assert found["labels"].passed
    assert (found["length"].pairs, found["length"].passed) == (30, False)


def test_pairs_of_nearly_the_same_length_are_asked_about_apart():
    as_long = [dataclasses.replace(row, rejected=row.chosen[::-1]) for row in rows()]
    found = asked(lambda *text: -known(*text), as_long)
    assert (found["same_length"].pairs, found["same_length"].passed) == (PAIRS, False)
    assert asked(known, as_long)["same_length"].passed


def test_of_two_good_responses_either_may_be_chosen_in_the_newest_round():
    """Labels that are coin flips block nothing, where those of earlier rounds were understood."""
    flipped = [
        row if place % 4 < 2 else dataclasses.replace(row, chosen=row.rejected, rejected=row.chosen)
        for place, row in enumerate(rows())
    ]
    earlier = [dataclasses.replace(row, pair_id=f"earlier {row.pair_id}") for row in rows()]

    alone, both = asked(known, flipped), asked(known, flipped, earlier)

    assert (alone["newest"].won, alone["newest"].passed) == (alone["labels"].won, True)
    assert not alone["labels"].passed
    assert both["labels"].pairs == 2 * PAIRS
    assert both["labels"].won is not None
    assert both["labels"].won.mean == 0.75
    assert both["labels"].passed


def test_labels_of_the_newest_round_that_are_turned_round_fail_whatever_the_earlier_say():
    turned = [dataclasses.replace(row, chosen=row.rejected, rejected=row.chosen) for row in rows()]
    earlier = [
        dataclasses.replace(row, pair_id=f"{row.pair_id} {time}")
        for row in rows()
        for time in range(3)
    ]
    found = asked(known, turned, earlier)
    assert found["labels"].passed
    assert "newest" in red(found)
