"""How many answers a pair still needs."""

from collections.abc import Sequence


def votes_needed(choices: Sequence[str], *, overlap: int, people: int) -> int:
    """Further answers needed for a pair with these choices, given `people` for it in all.

    `people` are those who have judged it and those who still can.

    A pair needs `overlap` answers from different annotators, and one more if they differ and
    somebody is left to give it. A skip counts as an answer that differs from any vote.
    """
    if len(choices) < overlap:
        return overlap - len(choices)
    disagree = len(set(choices)) > 1
    return int(len(choices) == overlap and disagree and people > overlap)
