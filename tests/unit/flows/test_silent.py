"""What the server is told to expect of a run that lives, and of one that has ended."""

import re
from pathlib import Path

from flows import rlhf, runs, silent, stage_flow, sweep

FLOWS = Path(__file__).resolve().parents[3] / "flows"
OTHERS = {"promotion.py", "on_feedback.py"}
"""Flows whose silence nobody looks for."""


def test_no_heartbeat_is_expected_after_any_state_in_which_a_run_of_ours_ends():
    named = {
        name
        for path in FLOWS.glob("*.py")
        if path.name not in OTHERS
        for name in re.findall(r'\b(?:Completed|Failed)\(\s*name="(\w+)"', path.read_text())
    }
    assert {"BadInput", "Busy", "Stale", "NotPushed", "Incomplete"} <= named
    assert named <= silent.ENDS
    assert "AwaitingRetry" in silent.ENDS, "the run of an evicted pod waits for another one"
    assert "Running" not in silent.ENDS
    assert "Cancelling" not in silent.ENDS, "it stays in it whose worker dies"


def test_the_runs_that_somebody_waits_for_are_looked_for():
    names = {runs.NAME, rlhf.rlhf.name, sweep.NAME, stage_flow.NAME}
    assert names == {"rlhf", "rlhf-sweep", "rlhf-stage"}
    for automation in (silent.crashed(), silent.taken_back()):
        assert set(automation.trigger.match_related["prefect.resource.name"]) == names


def test_a_silent_run_is_called_crashed_within_180_s_and_not_for_a_heartbeat_that_is_late():
    # The server looks every five seconds.
    (trigger,) = [silent.crashed().trigger]
    assert 3 * 30 <= trigger.within.total_seconds() <= 180 - 2 * 5
    assert not silent.crashed().actions[0].force


def test_no_run_is_called_crashed_for_the_time_that_its_process_takes_to_start():
    (trigger,) = [silent.never_started().trigger]
    assert trigger.within.total_seconds() >= 120
    # It may wait for a pod, or in Slurm's queue.
    assert "rlhf-stage" not in trigger.match_related["prefect.resource.name"]
    assert not silent.never_started().actions[0].force
