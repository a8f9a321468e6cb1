"""Continues the runs that wait for people, as soon as the labelling page says that a round is done.

The page knows the pairs of a round, not the run that asked for them: every run that waits is
ordered again, and one whose labels are still missing ends as `Waiting` in seconds. One that is at
work and ends as `Waiting` orders itself again, since it may have looked before the round was done.
"""

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows import runs

NAME = "rlhf-on-feedback"


@flow(
    name=NAME,
    persist_result=False,
    description="People have labelled a round: order the runs that wait for them.",
)
def on_feedback() -> State[None]:
    """Order each run that waits for people once more."""
    waiting = runs.order_waiting(Path.cwd())
    if not waiting:
        return Completed(name="NothingWaits", message="No run waits for people.")
    return Completed(name="Ordered", message=f"Ordered to continue: {', '.join(waiting)}")
