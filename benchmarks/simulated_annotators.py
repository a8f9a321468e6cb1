"""Are bad annotators flagged within a hundred items, and careful ones not?

    python -m benchmarks.simulated_annotators            # the table of docs/labelling.md

Simulates crews of eight, one of whom is bad in a known way, and counts who is flagged at any of ten
checks within the first hundred items of each person.
"""

import argparse
import math
import sys

import numpy as np

from feedback.quality.annotators import Answer, QualityParams, judge_annotators

KINDS = {
    "noisy": "flips 30 % of choices",
    "left": "always left",
    "fast": "median 1.5 s for 300 characters",
}


class Crew:
    """Seven careful annotators and a bad one judge Bradley-Terry pairs, 100 items each.

    The gold difference of a pair is normal with standard deviation 3 (that of the embedded world's
    first round is above 5); people perceive it with logistic noise of one point and press the
    wrong key for 3 % of pairs. Two people per pair, a third on disagreement, 10 % gold items.
    """

    people, items, gold_items = 8, 100, 10

    def __init__(self, seed: int, bad: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.bad = bad
        self.answers: list[list[Answer]] = [[] for _ in range(self.people)]
        pairs = self.people * (self.items - self.gold_items) // 2
        differences = self.rng.normal(0, 3, pairs)
        for pair, difference in enumerate(differences):
            order = sorted(range(self.people), key=self._least_busy)
            first, second = (self._answer(i, pair, difference) for i in order[:2])
            if first.choice != second.choice:
                self._answer(int(self.rng.choice(order[2:])), pair, difference)
        for person in range(self.people):
            self._mix_gold_in(person)

    def _least_busy(self, person: int) -> tuple[int, float]:
        return len(self.answers[person]), self.rng.random()

    def _answer(
        self, person: int, pair: object, difference: float, gold: str | None = None
    ) -> Answer:
        rng, bad = self.rng, self.bad if person == 0 else "careful"
        perceived = difference + rng.logistic()
        a_wins = (perceived > 0) != (rng.random() < 0.03)
        swap = rng.random() < 0.5
        if bad == "noisy" and rng.random() < 0.3:
            a_wins = not a_wins
        if bad == "left":
            a_wins = not swap
        seconds = 1.5 * math.exp(0.3 * rng.normal()) if bad == "fast" else 0.0
        answer = Answer(
            annotator_id=f"p{person}",
            pair_id=str(pair),
            purpose="label" if gold is None else "gold",
            choice="a" if a_wins else "b",
            strength=1 + sum(abs(perceived) >= step for step in (1, 2, 4)),
            left=a_wins != swap,
            visible_ms=int(1000 * (seconds or 12 * math.exp(0.5 * rng.normal()))),
            characters=300,
            gold=gold,
        )
        if gold is None:
            self.answers[person].append(answer)
        return answer

    def _mix_gold_in(self, person: int) -> None:
        mine = self.answers[person]
        for number in range(self.gold_items):
            at = int(self.rng.integers(len(mine) + 1))
            mine.insert(at, self._answer(person, f"gold-{number}", 4.5, gold="a"))

    def flagged(self, params: QualityParams) -> set[str]:
        """Everybody flagged at any of ten checks within their first hundred items."""
        found: set[str] = set()
        for upto in range(10, self.items + 1, 10):
            seen = [answer for mine in self.answers for answer in mine[:upto]]
            found |= {row.annotator_id for row in judge_annotators(seen, params) if row.flags}
        return found


def count(bad: str, crews: int) -> tuple[int, int]:
    """(Crews whose bad annotator is flagged, careful people flagged), for seeds 0, 1, ..."""
    caught = blamed = 0
    for seed in range(crews):
        flagged = Crew(seed, bad).flagged(QualityParams())
        caught += "p0" in flagged
        blamed += len(flagged - {"p0"})
    return caught, blamed


def main() -> int:
    """Prints the table; returns 1 if fewer than 95 % are found or more than 2 % wrongly flagged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crews", type=int, default=300, help="crews of each kind")
    crews = parser.parse_args().crews
    good = crews * (Crew.people - 1)
    sys.stdout.write("| simulated annotator | crews | flagged | careful people flagged |\n")
    sys.stdout.write("|---|---|---|---|\n")
    fails = False
    for bad, name in KINDS.items():
        caught, blamed = count(bad, crews)
        fails |= caught < 0.95 * crews or blamed > 0.02 * good
        sys.stdout.write(f"| {name} | {crews} | {caught / crews:.1%} | {blamed / good:.2%} |\n")
        sys.stdout.flush()
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
