"""Shares of pairs of which several have one prompt: the length rule, the bag of words."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from preferences.baselines import bag_of_words
from preferences.grouped_shares import grouped_share, longer_wins
from preferences.overview import longer_share
from preferences.records import Preference
from preferences.statistics import share


def row(chosen: str, rejected: str, prompt: str = "p") -> Preference:
    return Preference(pair_id="", prompt_id=prompt, prompt="", chosen=chosen, rejected=rejected)


# Of twenty prompts five go the other way; each has six pairs.
RANKED = [
    row("good word", "bad", str(prompt)) if prompt % 4 else row("bad", "good word", str(prompt))
    for prompt in range(20)
    for _ in range(6)
]
ALONE = [replace(each, prompt_id=str(number)) for number, each in enumerate(RANKED)]
TRAIN = [row("good", "bad", f"t{number}") for number in range(30)]


def test_longer_wins_leaves_equal_lengths_out() -> None:
    texts = [("aaa", "b"), ("a", "bbb"), ("aaaa", "b"), ("a", "b")]
    found = longer_wins(row(chosen, rejected) for chosen, rejected in texts)
    assert found is not None
    assert (found.mean, found.n) == (pytest.approx(2 / 3), 3)
    assert longer_wins([row("a", "b")]) is None


def test_without_a_prompt_twice_it_is_wilsons_interval_to_the_bit() -> None:
    hits = [1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 1.0]
    assert grouped_share(hits, list("abcdefg")) == share(4.5, 7)
    assert grouped_share([], []) is None


def test_groups_that_agree_within_count_once_each() -> None:
    """Forty groups of five equal cases: v = p (1-p) / 40 · 40/39, so n* = 39 (z / t_39)²."""
    hits = [float(group % 4 > 0) for group in range(40) for _ in range(5)]
    found = grouped_share(hits, [group for group in range(40) for _ in range(5)])
    assert found is not None
    z, t = 1.959963984540054, 2.0226909200367595
    n = 39 * (z / t) ** 2
    half = z * np.sqrt(0.75 * 0.25 / n + z**2 / (4 * n * n)) / (1 + z**2 / n)
    assert (found.mean, found.n) == (0.75, 200)
    assert found.high - found.low == pytest.approx(2 * half, rel=1e-4)


def test_groups_that_differ_within_count_no_more_than_their_cases() -> None:
    """Twenty prompts with two pairs, one right and one wrong in all but two: v is a fifth of that
    of 40 pairs of 40 prompts, and all the same n* = 40 (z / t_19)²."""
    hits = [1.0, 0.0] * 18 + [1.0, 1.0] * 2
    found = grouped_share(hits, [number // 2 for number in range(40)])
    assert found is not None
    z, t = 1.959963984540054, 2.093024054408263
    n = 40 * (z / t) ** 2
    half = z * np.sqrt(0.55 * 0.45 / n + z**2 / (4 * n * n)) / (1 + z**2 / n)
    assert (found.mean, found.n) == (pytest.approx(0.55), 40)
    assert found.high - found.low == pytest.approx(2 * half, rel=1e-4)


def table(rows: list[Preference]) -> pd.DataFrame:
    columns = [(False, len(r.chosen), len(r.rejected), hash(r.prompt_id)) for r in rows]
    return pd.DataFrame(
        columns, columns=["tie", "chosen_characters", "rejected_characters", "prompt"]
    )


@pytest.mark.parametrize("measure", ["words", "longer", "table"])
def test_a_baseline_over_rankings_is_no_surer_than_their_prompts(measure: str) -> None:
    measures = {
        "words": lambda rows: bag_of_words(TRAIN, rows),
        "longer": longer_wins,
        "table": lambda rows: longer_share(table(rows)),
    }
    ranked, apart = (measures[measure](rows) for rows in (RANKED, ALONE))
    assert (ranked.mean, ranked.n) == (apart.mean, apart.n) == (0.75, 120)
    # 19 independent cases less Student's t, for 120: 2.5 times as wide, a little less by Wilson.
    assert 2.2 < (ranked.high - ranked.low) / (apart.high - apart.low) < 2.7
