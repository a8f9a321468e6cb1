"""The evidence against noisy annotators, where it has a closed form."""

from math import log

import pytest

from feedback.quality.noise import Vote, noise_evidence

KNOWN = 500 / 501
"""Chance that the known answer of a gold item is right."""


def votes(name: str, pairs: range, choices: str, *, kind: str = "gold") -> list[Vote]:
    """Of one person, one for each pair, by turns as in `choices`."""
    return [
        Vote(name, f"{kind} {pair}", choices[number % len(choices)] == "a", None)
        for number, pair in enumerate(pairs)
    ]


def either(truth: float, p: float) -> float:
    """Chance of a vote for what is true with chance `truth`, by somebody who is right with `p`."""
    return truth * p + (1 - truth) * (1 - p)


def turned(p: float) -> float:
    """How often somebody is right who flips a quarter of their choices."""
    return 0.75 * p + 0.25 * (1 - p)


def expected() -> tuple[float, float, float]:
    """The evidence against x, y and z of the next test.

    z is known to be noisy, and x and y to be careful, with next to certainty. So the careful are
    right with chance p: 8.5 of 10 to begin with, 80 known items, and 10 pairs of which z said the
    opposite.
    """
    p = 0.85
    for _ in range(100):
        item = KNOWN * p / either(KNOWN, p)
        pair = p * (1 - turned(p)) / (p * (1 - turned(p)) + (1 - p) * turned(p))
        p = (8.5 + 80 * item + 10 * pair) / 100
    q = turned(p)
    right = log(either(KNOWN, q) / either(KNOWN, p))
    wrong = log(either(1 - KNOWN, q) / either(1 - KNOWN, p))
    against_z = log(either(1 - q, q) / either(1 - q, p))
    against_y = log(either(1 - p, q) / either(1 - p, p))
    return 40 * right, 40 * right + 10 * against_z, 20 * right + 20 * wrong + 10 * against_y


def test_a_vote_against_somebody_noisy_weighs_less_than_one_against_a_known_answer() -> None:
    said = [*votes("x", range(40), "a"), *votes("y", range(50, 90), "a")]
    said += votes("z", range(100, 140), "ab")
    said += [*votes("z", range(10), "a", kind="pair"), *votes("y", range(10), "b", kind="pair")]
    gold = {vote.pair_id: "a" for vote in said if vote.pair_id.startswith("gold")}

    found = noise_evidence(said, gold)

    assert (found["x"], found["y"], found["z"]) == pytest.approx(expected(), rel=0.01)
    assert found["x"] < found["y"] < -6 < 30 < found["z"], "or p is another one"


def test_the_names_of_the_responses_make_no_difference() -> None:
    said = [*votes("x", range(30), "aaab"), *votes("y", range(30), "aab")]
    mirrored = [Vote(one.annotator_id, one.pair_id, not one.for_a, None) for one in said]
    known = {f"gold {number}": "a" for number in range(10)}
    found = noise_evidence(said, known)
    assert noise_evidence(mirrored, dict.fromkeys(known, "b")) == pytest.approx(found)
    assert found["y"] > found["x"]
