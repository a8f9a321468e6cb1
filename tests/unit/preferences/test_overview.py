"""Numbers about the data as a whole; the end of an interval nearer to the bound is compared."""

import numpy as np
import pandas as pd
import pytest

from preferences.measures import Measured, PromptWords
from preferences.overview import Number, _agreement, numbers_of
from preferences.params import Bound, Bounds
from preferences.statistics import Votes

AGREE = [{"x": "a", "y": "a"}, {"x": "b", "y": "b"}]
DIFFER = [{"x": "a", "y": "b"}, {"x": "b", "y": "a"}]
UNITS = [*AGREE, *AGREE, *DIFFER, *DIFFER, {"x": "a", "y": "b", "z": "tie"}]


def agreement_of(units):
    votes = Votes()
    votes.units = units
    return _agreement(votes)["agreement"]


def test_the_interval_of_agreement_narrows_with_the_number_of_pairs():
    alpha, near, n = agreement_of(UNITS)
    # The first two votes: 5 of 9 pairs differ, chance 2 * 9 * 9 / (18 * 17).
    assert (alpha, n) == (pytest.approx(1 - (5 / 9) / (162 / 306)), 9)
    assert alpha < 0.2 < near < 1
    alpha, near, n = agreement_of(UNITS * 200)
    assert alpha < near < 0.2
    assert agreement_of(UNITS * 200) == (alpha, near, n)


def test_the_interval_is_as_wide_as_theory_has_it():
    # Half of 400 pairs agree: alpha is near 0, its standard error 2 * sqrt(0.25 / 400) = 0.05.
    alpha, near, _ = agreement_of((AGREE + DIFFER) * 100)
    assert near - alpha == pytest.approx(1.96 * 0.05, rel=0.1)


def test_annotators_who_always_agree_do_so_in_every_draw():
    assert agreement_of(AGREE * 3) == (1.0, 1.0, 6)


@pytest.mark.parametrize("pairs", [1, 2, 5, 8])
def test_a_few_pairs_say_little_of_agreement(pairs):
    """Annotators whose alpha is the limit, 0.2: each is right in 0.5 + √0.2 / 2."""
    draws = np.random.default_rng(0)
    truth = draws.random((500, pairs)) < 0.5
    right = draws.random((2, 500, pairs)) < 0.5 + 0.2**0.5 / 2
    flagged = 0
    for said in np.where(truth == right, "a", "b").swapaxes(0, 1):
        votes = Votes()
        votes.units = [{"x": x, "y": y} for x, y in said.T.tolist()]
        flagged += _agreement(votes).get("agreement", (1, 1, 0))[1] < 0.2
    # By a bootstrap alone 0.42, 0.17, 0.19 and 0.10 were.
    assert flagged / 500 < 0.06


# --- numbers of the table ------------------------------------------------------------------------


def table(*rows):
    """Rows of fresh, tie, characters of the chosen and of the rejected; each has its own prompt."""
    names = ["fresh", "tie", "chosen_characters", "rejected_characters"]
    found = pd.DataFrame(rows, columns=names)
    return found.assign(prompt=range(len(rows)), margin=0.0, language=0)


def numbers(rows, votes=None, words=None) -> dict[str, Number]:
    measured = Measured(rows, words or PromptWords(), {})
    return {one.name: one for one in numbers_of(measured, votes or Votes(), Bounds())}


def test_longer_wins_is_of_fresh_decided_pairs_with_a_longer_side():
    found = numbers(
        table(
            (True, False, 10, 5), (True, False, 3, 8), (True, True, 9, 1), (True, False, 4, 4),
            (False, False, 9, 1),
        )
    )["longer_wins"]  # fmt: skip
    assert (found.value, found.n) == (0.5, 2)


def test_lengths_drift_where_either_side_does():
    for fresh, earlier in (((5, 1), (5, 9)), ((1, 5), (9, 5))):
        rows = [(True, False, *fresh)] * 30 + [(False, False, *earlier)] * 20
        found = numbers(table(*rows))["length_drift"]
        assert (found.value, found.n) == (1.0, 30)


def test_a_word_drifts_by_its_share_of_the_prompts_of_either_time():
    """In nine of ten fresh prompts, and in ten of a hundred before."""
    words = PromptWords(seen=(set(range(100)), set(range(10))))
    words.counts[1, 7], words.counts[0, 7] = 9, 10
    found = numbers(table((True, False, 1, 1)), words=words)["prompt_drift"]
    assert (found.value, found.n) == (pytest.approx(0.8), 10)


@pytest.mark.parametrize(("first", "second"), [(30, 70), (70, 30)])
def test_votes_for_either_place_deviate_from_one_half(first, second):
    """Wilson's interval of 30 of 100 ends at 0.3959, by hand."""
    votes = Votes()
    votes.first, votes.second = first, second
    found = numbers(table((True, False, 1, 1)), votes)["first_wins"]
    assert (found.value, found.n) == (pytest.approx(0.2), 100)
    assert found.near == pytest.approx(0.5 - 0.3959, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "value", "near", "kept"),
    [
        ("first_wins", 0.3, 0.19, True),
        ("first_wins", 0.3, 0.21, False),
        ("agreement", 0.1, 0.21, True),
        ("agreement", 0.1, 0.19, False),
    ],
)
def test_the_nearer_end_is_held_against_the_bound(name, value, near, kept):
    number = Number(name=name, value=value, near=near, n=9, bound=Bound(limit=0.2))
    assert number.kept is kept
