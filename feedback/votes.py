"""How many answers a pair still needs."""

from collections.abc import Sequence


def votes_needed(choices: Sequence[str], *, overlap: int, people: int) -> int:
    """Further answers wanted for a pair that has these, each from another of `people` annotators.

    `overlap` answers; one more if they are not all the same and somebody is left to give it. A skip
    is an answer like any other: it differs from a vote, so that one more person is asked.
    """
    if len(choices) < overlap:
        return overlap - len(choices)
    disagree = len(set(choices)) > 1
    return int(len(choices) == overlap and disagree and people > overlap)
