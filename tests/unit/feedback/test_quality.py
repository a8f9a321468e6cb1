"""Statistics against textbook numbers, and planted bad annotators that must be found."""

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feedback import accounts, rounds
from feedback.assignments import ServeParams
from feedback.lead import lead_view
from feedback.quality import Answer, QualityParams, agreement, judge_annotators
from feedback.records import gold_shares, load_answers, pause_the_poor
from feedback.statistics import Share, binomial_two_sided, cohen_kappa, krippendorff_alpha


def test_alpha_is_that_of_krippendorffs_own_example() -> None:
    # Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", example C: nominal 0.743.
    rows = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    units = [[row[unit] for row in rows if row[unit] != "."] for unit in range(12)]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)


def test_alpha_is_one_for_agreement_and_unknown_for_one_label() -> None:
    assert krippendorff_alpha([["a", "a"], ["b", "b", "b"]]) == 1
    assert krippendorff_alpha([["a", "a"], ["a", "a"]]) is None
    assert krippendorff_alpha([["a"], ["b"]]) is None


def test_kappa_is_that_of_a_table_worked_by_hand() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: p_o = 0.7, p_e = 0.5, kappa = 0.4.
    first = ["y"] * 25 + ["n"] * 25
    second = ["y"] * 20 + ["n"] * 5 + ["y"] * 10 + ["n"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa([], []) is None
    assert cohen_kappa(["y"], ["y"]) is None


def test_the_interval_is_wilsons() -> None:
    # 8 of 10: 0.4902 to 0.9433 (Newcombe 1998, method 3, by hand).
    assert Share(8, 10).low == pytest.approx(0.4902, abs=1e-4)
    assert Share(8, 10).high == pytest.approx(0.9433, abs=1e-4)
    assert Share(0, 10).low == pytest.approx(0, abs=1e-12)
    assert (Share(0, 0).low, Share(0, 0).high) == pytest.approx((0, 1))


def test_the_side_test_is_the_exact_binomial_one() -> None:
    assert binomial_two_sided(0, 5) == pytest.approx(2 / 32)
    assert binomial_two_sided(8, 10) == pytest.approx(2 * (45 + 10 + 1) / 1024)
    assert binomial_two_sided(5, 10) == 1
    assert binomial_two_sided(0, 0) == 1


class Crew:
    """Seven careful annotators and a bad one at Bradley-Terry pairs, 100 items each.

    The gold difference of a pair is normal with standard deviation 3 (that of the embedded world's
    first round is above 5); people perceive it with logistic noise of one point and press the
    wrong key in 3 % of answers. Two people per pair, a third on disagreement, 10 % gold items.
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
        """Everybody who is flagged at any of ten looks within their first hundred items."""
        found: set[str] = set()
        for upto in range(10, self.items + 1, 10):
            seen = [answer for mine in self.answers for answer in mine[:upto]]
            found |= {row.annotator_id for row in judge_annotators(seen, params) if row.flags}
        return found


CREWS = int(os.environ.get("CREWS", "20"))
"""Simulated crews per kind of bad annotator; docs/labelling.md reports CREWS=300."""


@pytest.mark.parametrize("bad", ["noisy", "left", "fast"])
def test_bad_annotators_are_flagged_and_good_ones_are_not(bad: str) -> None:
    caught = blamed = 0
    for seed in range(CREWS):
        flagged = Crew(seed, bad).flagged(QualityParams())
        caught += "p0" in flagged
        blamed += len(flagged - {"p0"})
    good = CREWS * (Crew.people - 1)
    # 95 % and 2 %, give or take two standard errors of this many simulations.
    assert caught / CREWS >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / CREWS)
    assert blamed / good <= 0.02 + 2 * math.sqrt(0.02 * 0.98 / good)


def answer(name: str, pair: str, choice: str, **changes: Any) -> Answer:
    made = Answer(
        annotator_id=name,
        pair_id=pair,
        purpose="label",
        choice=choice,
        strength=None,
        left=None,
        visible_ms=None,
        characters=100,
    )
    return replace(made, **changes)


def test_agreement_counts_pairs_of_answers_and_leaves_skips_out() -> None:
    answers = [
        answer("x", "1", "a"),
        answer("y", "1", "a"),
        answer("x", "2", "a"),
        answer("y", "2", "b"),
        answer("x", "3", "skip"),
        answer("y", "3", "a"),
        answer("x", "4", "b", purpose="repeat"),
    ]
    found = agreement(answers)
    assert (found.raw.hits, found.raw.n) == (1, 2)
    # Labels a, a, a, b: D_o = 1/2, D_e = 6/12 -> alpha = 1 - 0.5 / 0.5.
    assert found.alpha == pytest.approx(0)
    assert found.kappa is None


def test_gold_repeats_and_peers_are_counted_each_for_itself() -> None:
    answers = [
        answer("x", "1", "a"),
        answer("y", "1", "a"),
        answer("x", "1", "b", purpose="repeat"),
        answer("x", "g1", "a", purpose="gold", gold="a"),
        answer("x", "g2", "tie", purpose="gold", gold="a"),
    ]
    row = judge_annotators(answers, QualityParams())[0]
    assert (row.gold.hits, row.gold.n) == (1, 2)
    assert (row.repeats.hits, row.repeats.n) == (0, 1)
    assert (row.peers.hits, row.peers.n) == (1, 1)


def test_who_fails_the_known_answers_is_paused_and_judged_afresh_after_a_word(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(60), overlap=2)
    gold = make_pairs(20, key="gold", start=500)
    with desk.database.writing() as connection:
        rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
    params = ServeParams(gold_rate=0.5, repeat_rate=0)
    for _ in range(40):
        desk.answer("ana", "b", params)
        desk.answer("ben", "a", params)
    with desk.database.reading() as connection:
        shares = gold_shares(connection)
        table = judge_annotators(load_answers(connection), QualityParams())
    assert {row.annotator_id: row.gold for row in table} == shares
    assert shares["ana"].hits == 0
    paused = pause_the_poor(desk.database, QualityParams())
    assert paused == {"ana": next(row.pause for row in table if row.annotator_id == "ana")}
    assert f"0 of {shares['ana'].n} known answers right, expected 70% at least" in paused["ana"]
    assert pause_the_poor(desk.database, QualityParams()) == {}
    with desk.database.writing() as connection:
        view = lead_view(connection, QualityParams())
        assert [row["name"] for row in view["people"]] == ["ana", "ben"]
        assert view["people"][0]["paused"] is not None
        accounts.resume(connection, "ana")
    assert pause_the_poor(desk.database, QualityParams()) == {}
    with desk.database.reading() as connection:
        assert {one.annotator_id for one in load_answers(connection)} == {"ben"}
