"""`python -m flows.deployment`: registers the flows with a Prefect server and runs them when asked.

`make ui` starts this; by itself it needs `PREFECT_API_URL`. It polls the server for runs that a
person, a schedule or the labelling page has ordered, and runs one at a time, each in a process of
its own.
"""

import sys
from datetime import timedelta
from pathlib import Path

from prefect import serve
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.types.entrypoint import EntrypointType

from feedback.page.notify import EVENT
from flows import promotion
from flows.crashed import report_crash
from flows.rlhf import rlhf
from tasks.workspace.driver_lock import died_in

NAME = "rounds"
WEEKLY = DeploymentScheduleCreate(
    schedule=CronSchedule(cron="0 3 * * 1", timezone="UTC"), active=False, slug="weekly"
)
"""Mondays at three, switched off: an example to switch on or to change in the UI."""
LABELLED = DeploymentEventTrigger(
    name="round-labelled",
    description="People have labelled a round: continue with it.",
    expect={EVENT},
    match={"prefect.resource.id": "rlhf.feedback.*"},
    threshold=1,
    within=timedelta(0),
)
"""The labelling page says that a round is complete (`feedback.page.notify`)."""


def main() -> int:
    """Serve the flows of the current folder until a signal comes; the exit code."""
    # Where this process was started again, a run may have died with the one before.
    for dead in died_in(Path.cwd()):
        report_crash(dead)
    parameters = {"workspace": str(Path.cwd())}
    rounds = RunnerDeployment.from_flow(
        rlhf,
        NAME,
        schedules=_schedules(),
        triggers=[LABELLED],
        parameters=parameters,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    policy = RunnerDeployment.from_flow(
        promotion.promote,
        promotion.NAME,
        parameters=parameters,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    # Schedules resume when we are back.
    serve(rounds, policy, pause_on_shutdown=False, limit=1, print_starting_message=False)
    return 0


def _schedules() -> list[DeploymentScheduleCreate]:
    """The schedules as changed in the UI; registering again would reset them."""
    with get_client(sync_client=True) as client:
        try:
            known = client.read_deployment_by_name(f"{rlhf.name}/{NAME}")
        except ObjectNotFound:
            return [WEEKLY]
    return [
        DeploymentScheduleCreate(
            schedule=each.schedule, active=each.active, parameters=each.parameters, slug=each.slug
        )
        for each in known.schedules
    ]


if __name__ == "__main__":
    sys.exit(main())
