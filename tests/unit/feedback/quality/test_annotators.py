"""Statistics against numbers worked by hand, and simulated bad annotators that must be flagged."""

import math
import time
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import binomtest

from benchmarks.simulated_annotators import Crew, count
from feedback.page.lead import lead_view
from feedback.quality.annotators import (
    Answer,
    QualityParams,
    agreement,
    binomial_two_sided,
    judge_annotators,
)
from feedback.quality.answers import gold_shares, load_answers, pause_inaccurate
from feedback.store import accounts, rounds
from feedback.store.assignments import ServeParams


def test_the_side_test_is_the_exact_binomial_one() -> None:
    assert binomial_two_sided(0, 5) == pytest.approx(2 / 32)
    assert binomial_two_sided(8, 10) == pytest.approx(2 * (45 + 10 + 1) / 1024)
    assert binomial_two_sided(5, 10) == 1
    assert binomial_two_sided(0, 0) == 1


@pytest.mark.parametrize(("hits", "n"), [(4_900, 10_000), (199_000, 400_000)])
def test_the_side_test_of_very_many_answers_takes_no_time(hits: int, n: int) -> None:
    begun = time.process_time()
    found = binomial_two_sided(hits, n)
    # They took 18 s and 11 s, each time that the lead opened the page.
    assert time.process_time() - begun < 2
    assert found == pytest.approx(binomtest(hits, n).pvalue, rel=1e-7)


CREWS = 12
"""Crews per kind of bad annotator; `python -m benchmarks.simulated_annotators` runs 300."""


@pytest.mark.parametrize(
    "bad",
    ["noisy", *(pytest.param(bad, marks=pytest.mark.long) for bad in ("left", "fast"))],
)
def test_bad_annotators_are_flagged_and_good_ones_are_not(bad: str) -> None:
    caught, blamed = count(bad, CREWS)
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


def test_a_third_vote_on_pairs_in_dispute_changes_no_agreement() -> None:
    # 82 of 100 pairs were agreed on by the first two; then alpha is 1 - 0.18 / (100 / 199) and
    # Cohen's kappa 1 - 0.18 / 0.5. Over all votes they were 0.67 and 0.48, and the share 0.74.
    said = [("xy", "aa"), ("xy", "bb")] * 41 + [("xyz", "aba"), ("xyz", "bab")] * 9
    answers = [
        answer(name, str(pair), choice)
        for pair, (names, choices) in enumerate(said)
        for name, choice in zip(names, choices, strict=True)
    ]
    found = agreement(answers)
    assert (found.raw.hits, found.raw.n) == (82, 100)
    assert found.alpha == pytest.approx(1 - 0.18 / (100 / 199))
    assert found.kappa == pytest.approx(0.64)
    people = {row.annotator_id: row for row in judge_annotators(answers, QualityParams())}
    assert (people["x"].peers.hits, people["x"].peers.n) == (82, 100)
    assert people["z"].peers is None


def test_kappa_is_the_mean_over_annotators_with_twenty_pairs_in_common() -> None:
    # 20 a/a, 5 a/b, 10 b/a, 15 b/b of x and y: p_o = 0.7, p_e = 0.5, kappa = 0.4. z: too few.
    said = ["aa"] * 20 + ["ab"] * 5 + ["ba"] * 10 + ["bb"] * 15
    answers = [
        answer(name, str(pair), choice)
        for pair, choices in enumerate(said)
        for name, choice in zip("xy", choices, strict=True)
    ]
    answers += [
        answer(name, f"z{pair}", choice) for pair in range(19) for name, choice in ("xa", "zb")
    ]
    found = agreement(answers)
    assert found.kappa == pytest.approx(0.4)
    assert (found.compared, found.met) == (1, 2)


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


def test_who_was_resumed_leaves_no_vote_of_a_dispute_in_the_place_of_a_first_one() -> None:
    """x and y agree in 8 of 12; z was asked about the other 4 and is with y in each."""
    resumed = []
    for number in range(12):
        dispute = number < 4
        resumed.append(answer("x", f"p{number}", "b" if dispute else "a", counts=False))
        resumed.append(answer("y", f"p{number}", "a"))
        if dispute:
            resumed.append(answer("z", f"p{number}", "a"))
    assert agreement(resumed).raw is None
    (y, z) = judge_annotators(resumed, QualityParams())
    assert (y.annotator_id, y.answers, y.peers) == ("y", 12, None)
    assert (z.annotator_id, z.answers, z.peers) == ("z", 4, None)

    afterwards = [*resumed, answer("x", "q", "a"), answer("y", "q", "b")]
    found = agreement(afterwards).raw
    assert found is not None
    assert (found.hits, found.n) == (0, 1)


def test_who_fails_the_known_answers_is_paused_and_judged_afresh_when_resumed(
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
    paused = pause_inaccurate(desk.database, QualityParams())
    assert paused == {"ana": next(row.pause for row in table if row.annotator_id == "ana")}
    assert f"0 of {shares['ana'].n} known answers right, expected at least 70%" in paused["ana"]
    assert pause_inaccurate(desk.database, QualityParams()) == {}
    with desk.database.writing() as connection:
        view = lead_view(connection, QualityParams())
        assert [row["name"] for row in view["people"]] == ["ana", "ben"]
        assert view["people"][0]["paused"] is not None
        accounts.resume(connection, "ana")
    assert pause_inaccurate(desk.database, QualityParams()) == {}
    with desk.database.reading() as connection:
        counted = [one.annotator_id for one in load_answers(connection) if one.counts]
        assert set(counted) == {"ben"}
        people = lead_view(connection, QualityParams())["people"]
    assert {row["name"]: row["answers"] for row in people} == {"ana": 0, "ben": len(counted)}
