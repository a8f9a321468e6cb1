"""`python -m flows.deployment`: registers the flow with a Prefect server and runs it when asked.

`make ui` starts this; by itself it needs `PREFECT_API_URL`. It polls the server for runs that a
person or a schedule has ordered, and runs one at a time, each in a process of its own.
"""

import sys
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.types.entrypoint import EntrypointType

from flows.rlhf import rlhf

NAME = "rounds"
WEEKLY = DeploymentScheduleCreate(
    schedule=CronSchedule(cron="0 3 * * 1", timezone="UTC"), active=False, slug="weekly"
)
"""Mondays at three, switched off: an example to switch on or to change in the UI."""


def main() -> int:
    """Serve the flow of the current folder until a signal comes; the exit code."""
    rlhf.serve(
        NAME,
        schedules=_schedules(),
        # They go on when we come back.
        pause_on_shutdown=False,
        parameters={"workspace": str(Path.cwd())},
        limit=1,
        print_starting_message=False,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return 0


def _schedules() -> list[DeploymentScheduleCreate]:
    """What people have made of the schedules in the UI: to register anew would drop it."""
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
