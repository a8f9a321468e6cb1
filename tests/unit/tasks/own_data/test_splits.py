"""Own prompts: their splits, and which judged pairs of theirs are held out."""

import pytest

from preferences.intake import candidates_of
from preferences.records import Preference, Sourced
from tasks.own_data.rows import own_split
from tasks.params.prepare import FilesParams

FILES = FilesParams(prompts="p", demonstrations="d")
"""The defaults: a tenth held out, a tenth for the test."""


def words(number: int) -> str:
    return f"Write a letter about subject number {number}, please."


def pair(prompt: str) -> Sourced:
    preference = Preference(
        pair_id="0" * 16, prompt_id="p", prompt=prompt, chosen="a", rejected="b", round="r1"
    )
    return Sourced(preference, "")


@pytest.mark.parametrize("fraction", [0.15, 0.1667])
def test_of_300_judged_pairs_on_own_prompts_10_to_23_percent_are_held_out(fraction: float):
    train = [words(n) for n in range(500) if own_split(words(n), FILES) == "train"]
    # Three standard deviations of a tenth of 500 on either side make 20 % +- 5.4 %.
    assert 373 <= len(train) <= 427

    sides = [each.preference.split for each in candidates_of(map(pair, train[:300]), [], fraction)]

    assert 0.10 <= sides.count("heldout") / 300 <= 0.23


def test_the_splits_of_own_prompts_are_those_of_their_fractions_and_nest():
    wider = FilesParams(prompts="p", demonstrations="d", heldout_fraction=0.3)
    splits = [(own_split(words(n), FILES), own_split(words(n), wider)) for n in range(1000)]
    shares = [sum(one == name for one, _ in splits) / 1000 for name in ("test", "heldout", "train")]

    # Three standard deviations of a share of 0.1 of 1,000 are 0.028.
    assert shares[0] == pytest.approx(0.1, abs=0.029)
    assert shares[1] == pytest.approx(0.1, abs=0.029)
    assert all(after == before for before, after in splits if before != "train")
    assert {after for before, after in splits if before == "train"} == {"train", "heldout"}
