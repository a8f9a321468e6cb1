"""How many answers a pair still needs."""

import pytest

from feedback.store.votes import votes_needed


@pytest.mark.parametrize(
    ("choices", "overlap", "people", "needed"),
    [
        ([], 1, 1, 1),
        (["a"], 1, 9, 0),
        ([], 2, 5, 2),
        (["a"], 2, 5, 1),
        (["a", "a"], 2, 5, 0),
        (["a", "b"], 2, 5, 1),
        (["a", "tie"], 2, 5, 1),
        (["a", "skip"], 2, 5, 1),
        (["skip", "skip"], 2, 5, 0),
        (["a", "b", "a"], 2, 5, 0),
        (["a", "b", "tie"], 2, 5, 0),
        # Nobody is left to give the third vote.
        (["a", "b"], 2, 2, 0),
        (["a", "a", "b"], 3, 9, 1),
        (["a", "a", "b", "b"], 3, 9, 0),
    ],
)
def test_a_third_vote_is_wanted_on_disagreement_alone(
    choices: list[str], overlap: int, people: int, needed: int
) -> None:
    assert votes_needed(choices, overlap=overlap, people=people) == needed
