"""How the ending of a stage shows in Prefect, and what deserves a second try."""

import pytest

from flows.graph import PlannedStage
from flows.rlhf import STATE_NAMES, plan_line, second_try_can_help, stage, task_state
from flows.stages import Ending

WELL = ["ran", "unchanged", "cached", "waiting"]


@pytest.mark.parametrize("how", WELL)
def test_what_went_well_or_waits_for_people_is_completed(how):
    assert task_state(Ending(how, "for labels")).is_completed()


@pytest.mark.parametrize("how", sorted(set(STATE_NAMES) - set(WELL)))
def test_everything_else_is_failed_with_its_own_name_and_message(how):
    state = task_state(Ending(how, "because"))
    assert state.is_failed()
    assert state.message == "because"
    assert state.name == STATE_NAMES[how]


def test_every_ending_has_a_name_of_its_own():
    assert len(set(STATE_NAMES.values())) == len(STATE_NAMES)


def test_only_a_crash_deserves_a_second_try():
    helped = {
        how
        for how in STATE_NAMES
        if second_try_can_help(stage, None, task_state(Ending(how, "")))  # type: ignore[arg-type]
    }
    assert helped == {"failed", "killed"}


def test_the_second_try_is_the_last():
    assert stage.retries == 1


def test_prefect_keeps_no_results_and_caches_nothing():
    assert stage.persist_result is False
    assert stage.cache_policy is not None
    assert stage.cache_policy.compute_key(task_ctx=None, inputs={}, flow_parameters={}) is None  # type: ignore[arg-type]


def test_the_log_tells_the_plan():
    stages = [
        PlannedStage(name="prepare", round=None, gpu=False, ends_round=False),
        PlannedStage(name="ppo@r1", round="r1", gpu=True, ends_round=True),
    ]
    assert plan_line(stages).endswith("prepare, ppo@r1*")
