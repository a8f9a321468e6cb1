"""How a run of `dvc repro` ended: the exit code for the shell, and one line for people."""

from pathlib import Path
from typing import NamedTuple

from tasks.reporting.summary import read_outcomes
from tasks.workspace.work_folder import read_running

WORDS = {
    "bad_input": "found bad input",
    "stopped": "stopped itself",
    "blocked": "was blocked",
    "waiting": "is waiting for people",
    "failed": "failed",
    "interrupted": "was interrupted; run again to resume from its checkpoint",
}
KILLED = (
    "was killed from outside, most likely because memory ran out. Run again to resume from its "
    "newest checkpoint; to use less memory, lower `micro_batch_size` or the lengths in params.yaml."
)


class Ended(NamedTuple):
    """How one run ended."""

    code: int
    message: str
    """For stderr; empty on success."""


def how_it_ended(
    workspace: Path, execution: str, code: int, signalled: int | None, since_ms: int
) -> Ended:
    """DVC exits 255 for every failure; the stage's own outcome says what happened.

    Args:
        workspace: where `dvc repro` ran.
        execution: the id that its stages were given.
        code: dvc's exit code.
        signalled: the signal that was passed on to it, None if there was none.
        since_ms: when it was started; an outcome from before is another run's, and so is a kill.
    """
    outcomes = [
        outcome
        for outcome in read_outcomes(workspace)
        if outcome["execution"] == execution and outcome["ended_ms"] >= since_ms
    ]
    if code == 0 and signalled is None:
        return Ended(0, "")
    if bad := [outcome for outcome in outcomes if outcome["code"] != 0]:
        last = bad[-1]
        words = WORDS.get(last["status"], last["status"])
        if last["status"] == "interrupted":  # The stage has said no more than this.
            return Ended(last["code"], f"{last['stage']} {words}")
        return Ended(last["code"], f"{last['stage']} {words}: {last['message']}".rstrip(": "))
    if signalled is not None:
        return Ended(128 + signalled, "Interrupted; run again to resume.")
    for running in read_running(workspace):
        if running.execution == execution and running.since_ms >= since_ms and not running.alive:
            return Ended(137, f"{running.stage} {KILLED}")
    return Ended(1, "dvc repro failed; its message is above.")
