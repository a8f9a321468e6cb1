"""Pairs that annotators are asked about."""

from feedback.judgments import Pair
from preferences.records import pair_id


def two_pairs() -> list[Pair]:
    """Of one round, each of a prompt of its own."""
    return [
        Pair(pair_id=pair_id(prompt, "x", "y"), round="r1", prompt=prompt,
             response_a="x", response_b="y")
        for prompt in ("p", "q")
    ]  # fmt: skip
