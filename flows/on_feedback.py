"""Continues the runs that wait for people, as soon as the labelling page says that a round is done.

The page knows the pairs of a round, not the run that asked for them: every run that waits is
ordered again, and one whose labels are still missing ends as `Waiting` in seconds.
"""

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.deployments import run_deployment
from prefect.states import Completed

from flows import runs

NAME = "rlhf-on-feedback"
TRIGGER = "round-labelled"
"""Name of the automation, and a tag of the runs that it has ordered."""


@flow(
    name=NAME,
    persist_result=False,
    description="People have labelled a round: order the runs that wait for them.",
)
def on_feedback() -> State[None]:
    """Order each run that waits for people once more."""
    waiting = runs.waiting_runs(Path.cwd())
    for name, until in waiting.items():
        run_deployment(
            runs.DEPLOYMENT,
            parameters={"name": name, "until": until},
            timeout=0,
            as_subflow=False,
            tags=[TRIGGER],
        )
    if not waiting:
        return Completed(name="NothingWaits", message="No run waits for people.")
    return Completed(name="Ordered", message=f"Ordered to continue: {', '.join(waiting)}")
