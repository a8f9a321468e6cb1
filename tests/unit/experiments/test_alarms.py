"""Rules without gold, judged over the rounds of records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.alarms import Round, all_rounds, area_under_curve, once, page, rounds_of
from experiments.descriptions import Experiment
from experiments.records import signals

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = Experiment(
    name="mine",
    question="Which?",
    budget="little",
    seeds=[0],
    variants={"default": {}, "frozen": {"reward": {"retrain": False}}},
    common={},
    fit="none",
)


def policy(name: str, gold: float, kl: float) -> dict[str, Any]:
    return {"name": name, "gold": {"mean": gold}, "kl": {"mean": kl}, "proxy": {"mean": kl / 4}}


def record(variant: str, state: str = "Completed") -> dict[str, Any]:
    """Gold rises by 3, rises by 1 and falls by 2."""
    figures = {
        "fresh_accuracy": {"mean": 0.55, "low": 0.49, "high": 0.61},
        "policy_wins": {"mean": 0.4},
    }
    return {
        "variant": variant, "seed": 0, "state": state,
        "policies": [
            policy("sft", 4.0, 0.0), policy("r1", 7.0, 2.0),
            policy("r2", 8.0, 4.0), policy("r3", 6.0, 8.0),
        ],
        "signals": {
            "r1": {"fresh_accuracy": {"mean": 0.7, "low": 0.6, "high": 0.8}, "policy_wins": None},
            "r2": {"fresh_accuracy": {"mean": 0.65, "low": 0.6, "high": 0.7}, "policy_wins": None},
            "r3": figures,
        },
    }  # fmt: skip


def test_rounds_after_the_first_have_their_change_and_their_signals():
    r2, r3 = rounds_of(EXPERIMENT, record("frozen"))
    assert (r2.key, r2.gold_change, r2.fell, r2.accuracy["mean"]) == ("r2", 1.0, False, 0.65)
    assert (r3.key, r3.gold_change, r3.fell, r3.kl, r3.proxy) == ("r3", -2.0, True, 8.0, 2.0)
    assert not r2.retrained
    assert all(one.retrained for one in rounds_of(EXPERIMENT, record("default")))


@pytest.mark.parametrize("change", [{"state": "Stopped"}, {"signals": {}}])
def test_runs_that_stopped_or_whose_signals_were_not_kept_are_left_out(change: dict[str, Any]):
    assert not list(rounds_of(EXPERIMENT, record("default") | change))


@pytest.mark.parametrize(
    ("start", "keys"), [("models/sft", ["r2"]), ("models/rounds/r2/policy", ["r2", "r3"])]
)
def test_a_round_that_starts_anew_is_no_fall_of_the_policy_before(start: str, keys: list[str]):
    anew = replace(EXPERIMENT, variants={"anew": {"rounds": {"r3": {"start": start}}}})

    assert [one.key for one in rounds_of(anew, record("anew"))] == keys


def test_the_page_is_that_of_the_records() -> None:
    assert (ROOT / "docs/results/alarms.md").read_text("utf-8") == page(all_rounds(ROOT))


def test_the_area_counts_pairs_and_ties_as_half():
    # 5 is above 1 and 3, 3 above 1 and equal to 3: (2 + 1.5) of 4.
    assert area_under_curve([5.0, 3.0], [1.0, 3.0]) == 3.5 / 4
    assert area_under_curve([], [1.0]) is None


def test_a_rule_is_judged_by_rounds_that_fell_and_rounds_that_rose():
    rounds: list[Round] = [
        *rounds_of(EXPERIMENT, record("frozen")),
        *rounds_of(EXPERIMENT, record("default")),
    ]
    (line,) = (line for line in page(rounds).splitlines() if line.startswith("| KL above 6"))
    # Both falls have 8 nats, both rises 4. Wilson of 0 of 2: 3.8415 / (2 + 3.8415) = 0.66.
    assert line.split(" | ")[2:] == [
        "0 of 2, 0.00 to 0.66", "0 of 2, 0.00 to 0.66", "0 of 1, 0.00 to 0.79 |",
    ]  # fmt: skip
    assert "| KL after PPO | 1.00 | 1.00 |" in page(rounds)


def test_the_signals_of_rounds_that_have_them_are_kept(tmp_path: Path):
    folder = tmp_path / "results" / "reward" / "r2"
    folder.mkdir(parents=True)
    (folder / "signals.json").write_text(json.dumps({"policy_wins": None}))
    assert signals(tmp_path, ["r1", "r2"]) == {"r2": {"policy_wins": None}}


def test_a_round_that_another_experiment_has_too_counts_once() -> None:
    def rounds_named(name: str) -> list[Round]:
        return list(rounds_of(replace(EXPERIMENT, name=name), record("default")))

    (rise, fall), same = rounds_named("mine"), rounds_named("theirs")
    other = replace(fall, kl=fall.kl + 1)

    assert once([rise, fall, *same, other]) == [rise, fall, other]
