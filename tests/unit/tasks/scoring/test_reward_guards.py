"""Which pairs a reward model is asked about before PPO, and what its fresh labels may do."""

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from preferences.records import Preference
from rlhf.intervals import proportion_interval
from rlhf.params.reward import RewardParams
from tasks.scoring.over_optimisation import Signals
from tasks.scoring.reward_guards import Guards, Known, end_where_they_say_so
from tasks.scoring.reward_probes import LEAST, Probe


def rows(name: str, key: str, count: int) -> list[Preference]:
    return [
        Preference(
            pair_id=f"{name} {key} {number}", prompt_id=f"{number}", prompt="?", chosen="a",
            rejected="b", round=key,
        )
        for number in range(count)
    ]  # fmt: skip


def known(fresh: int, *, trained: bool) -> Known:
    """So many held-out pairs of the round r2, and others."""
    train = rows("train", "r1", 3) + rows("train", "r2", 4)
    heldout = rows("heldout", "", 2) + rows("heldout", "r2", fresh)
    return Known(train, heldout, trained=trained)


def names(found: Sequence[Preference]) -> set[tuple[str, str]]:
    return {(row.pair_id.split()[0], row.round) for row in found}


def test_the_newest_labels_are_those_of_the_round_that_the_model_has_not_seen():
    assert names(known(5, trained=True).newest("r2")) == {("heldout", "r2")}
    assert names(known(5, trained=False).newest("r2")) == {("train", "r2"), ("heldout", "r2")}


@pytest.mark.parametrize("trained", [True, False])
def test_where_the_round_has_enough_held_out_pairs_these_alone_are_asked_about(trained: bool):
    found = known(LEAST, trained=trained).asked("r2", "a model of others")
    assert (names(found), len(found)) == ({("heldout", "r2")}, LEAST)


def test_where_it_has_too_few_whatever_the_model_has_not_seen_is_asked_about():
    """A copy of a model of this run has seen an earlier round's training pairs: it gets none."""
    few = LEAST - 1
    heldout = {("heldout", ""), ("heldout", "r2")}
    assert names(known(few, trained=True).asked("r2", None)) == heldout
    found = known(few, trained=False).asked("r2", "a model of others")
    assert names(found) == heldout | {("train", "r1"), ("train", "r2")}
    assert names(known(few, trained=False).asked("r2", None)) == {("heldout", "r2")}


class ToldStage(SimpleNamespace):
    """As much of a stage as the guards ask for."""

    def final(self, metrics: dict[str, Any]) -> None:
        self.told = metrics


@pytest.mark.parametrize(("least", "warned"), [(0.55, False), (0.65, True), (0.75, True)])
def test_the_alarm_of_the_fresh_labels_is_at_the_share_of_params_yaml(
    least: float, warned: bool, caplog: pytest.LogCaptureFixture
):
    params = SimpleNamespace(reward=RewardParams(min_fresh_accuracy=least))
    stage: Any = ToldStage(
        name="reward@r2", params=params, round=SimpleNamespace(policy="models/rounds/r1/policy")
    )
    passed = Probe("labels", 200, proportion_interval(150.0, 200), "above", 0.5)
    guards = Guards([passed], Signals(proportion_interval(120.0, 200), None))
    with caplog.at_level(logging.WARNING):
        end_where_they_say_so(stage, guards)
    assert (f"expected at least {least}" in caplog.text) is warned
    assert stage.told["guards"]["fresh_accuracy"]["mean"] == 0.6
