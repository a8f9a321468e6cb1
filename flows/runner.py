"""The deployments, their one definition, and the process that runs what is ordered of them.

It polls the server for runs that a person, a schedule or the labelling page has ordered, and runs
each in a process of its own. `flows.deployment` starts it.
"""

import asyncio
import copy
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from anyio.abc import TaskGroup
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.runner._control_channel import ControlChannel
from prefect.runner._limit_manager import LimitManager
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from feedback.page.notify import EVENT
from flows import on_feedback, promotion, runs, silent, sweep
from flows.crashed import WORKER, report_crash
from flows.environment import HEARTBEAT_SECONDS
from tasks.tracking.shipping import tracking_uri
from tasks.workspace.driver_lock import died_in
from tasks.workspace.worktrees import workspaces

ENDING_SECONDS = 30.0
"""After a SIGTERM; the stages of runs have some ten for a checkpoint."""
HEARING_SECONDS = 30.0
"""How long a run may take to hear that it is cancelled; it is ended as crashed otherwise.

Prefect gives it one. A process that loads its libraries on a busy machine is deaf for longer.
"""
AT_ONCE = 2
"""Runs that work at once; others wait. Where there is one accelerator, its stages take turns."""
SHORT = (promotion.NAME, on_feedback.NAME)
"""Deployments whose runs train nothing: they wait for others of their kind only, not for hours."""
FORMER = ("rlhf/rounds", "promote/policy")
"""Deployments of earlier versions: nobody serves them, and their trigger would order runs."""
WEEKLY = DeploymentScheduleCreate(
    schedule=CronSchedule(cron="0 3 * * 1", timezone="UTC"), active=False, slug="weekly"
)
"""Mondays at three, switched off: an example to switch on or to change in the UI."""
LABELLED = DeploymentEventTrigger(
    name=runs.TRIGGER,
    description="People have labelled a round: continue with it.",
    expect={EVENT},
    match={"prefect.resource.id": "rlhf.feedback.*"},
    threshold=1,
    within=timedelta(0),
)
"""The labelling page says that a round is complete (`feedback.page.notify`)."""


class Worker(Runner):
    """Runs what is ordered, hears of cancellations, and ends when it is asked to."""

    async def __aenter__(self) -> Self:
        """Begin as Prefect's own does, and look for cancelled runs once while the server is there.

        Prefect looks by itself only when the server has gone, with a client of its own, and a
        client that has not reached a server before gives up at once: no run could be cancelled any
        more, though the server came back.
        """
        self._control_channel = ControlChannel(ack_timeout=HEARING_SECONDS)
        await super().__aenter__()
        observer = self._cancelling_observer
        assert observer is not None, "Prefect has just made it"
        await observer._check_for_cancelled_flow_runs()  # type: ignore[no-untyped-call]
        await self._give_short_ones_slots_of_their_own()
        return self

    async def _give_short_ones_slots_of_their_own(self) -> None:
        """Else a decision of seconds would wait until one of two runs has ended, for hours."""
        long = self._scheduled_run_poller
        assert long is not None, "Prefect has just made it"
        short, submit = copy.copy(long), long._submit_scheduled_flow_runs
        short._limit_manager = await LimitManager(limit=self.limit).__aenter__()

        async def submit_each(flow_run_response: list[FlowRun], task_group: TaskGroup) -> None:
            kinds: dict[bool, list[FlowRun]] = {True: [], False: []}
            for one in flow_run_response:
                kinds[self._get_deployment_name(one) in SHORT].append(one)
            await short._submit_scheduled_flow_runs(kinds[True], task_group)
            await submit(kinds[False], task_group)

        long._submit_scheduled_flow_runs = submit_each  # type: ignore[method-assign]

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:
        """End as Prefect's own does, but never later than after `ENDING_SECONDS`.

        It raises SystemExit in whatever the loop is at. Where that is a task of anyio's, the loop
        may ask it to end again and again, for ever, on one core.
        """
        patience = threading.Timer(ENDING_SECONDS, os._exit, [0])
        patience.daemon = True
        patience.start()
        super().handle_sigterm(*args, **kwargs)


def run_orders(root: Path) -> None:
    """Register the flows of a checkout and run what is ordered, until a signal comes."""
    # Runs have workspaces of their own, and share the MLflow of the checkout.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    os.environ[WORKER] = str(os.getpid())
    # Where this process was started again, a run may have died with the one before.
    for folder in (root, *workspaces(root)):
        for dead in died_in(folder):
            report_crash(dead)
    _remove_former()
    with get_client(sync_client=True) as client:
        silent.register(client)
    worker = Worker(
        pause_on_shutdown=False,  # Schedules resume when we are back.
        limit=AT_ONCE,
        heartbeat_seconds=HEARTBEAT_SECONDS,
    )
    for each in deployments(root):
        worker.add_deployment(each)
    with suppress(KeyboardInterrupt):
        asyncio.run(worker.start())


def deployments(root: Path) -> list[RunnerDeployment]:
    """All deployments, as they are registered for the checkout `root`."""
    return [
        _deployment(runs.run, runs.NAME, new=[WEEKLY]),
        _deployment(on_feedback.on_feedback, on_feedback.NAME, triggers=[LABELLED]),
        _deployment(sweep.sweep, sweep.NAME),
        _deployment(promotion.promote, promotion.NAME, parameters={"workspace": str(root)}),
    ]


def _remove_former() -> None:
    with get_client(sync_client=True) as client:
        for name in FORMER:
            with suppress(ObjectNotFound):
                client.delete_deployment(client.read_deployment_by_name(name).id)


def _deployment(
    flow: Flow[..., Any],
    name: str,
    *,
    new: Sequence[DeploymentScheduleCreate] = (),
    parameters: Mapping[str, Any] = MappingProxyType({}),
    triggers: Sequence[DeploymentEventTrigger] = (),
) -> RunnerDeployment:
    """Of a flow, with its settings as people have left them; registering it would reset them.

    Args:
        flow: what it runs.
        name: of the deployment.
        new: the schedules of one that the server does not know yet.
        parameters: those that are ours at every start.
        triggers: what orders runs; on or off as people have left it.
    """
    settings = _settings(flow, name, new)
    settings["parameters"] |= parameters
    return RunnerDeployment.from_flow(
        flow,
        name,
        triggers=[_as_switched(trigger) for trigger in triggers],
        entrypoint_type=EntrypointType.MODULE_PATH,
        **settings,
    )


def _settings(
    flow: Flow[..., Any], name: str, new: Sequence[DeploymentScheduleCreate]
) -> dict[str, Any]:
    """Of a deployment, as people have left them; with new schedules where there is none."""
    with get_client(sync_client=True) as client:
        try:
            return _as_left(flow, client.read_deployment_by_name(f"{flow.name}/{name}"))
        except ObjectNotFound:
            return {"schedules": list(new), "paused": False, "parameters": {}}


def _as_left(flow: Flow[..., Any], known: DeploymentResponse) -> dict[str, Any]:
    """What people have made of a deployment, as far as the flow's form still takes it."""
    schema = parameter_schema(flow).model_dump(exclude_unset=True)
    limit, options = known.global_concurrency_limit, known.concurrency_options
    return {
        "schedules": [
            DeploymentScheduleCreate(
                schedule=one.schedule, active=one.active, parameters=one.parameters, slug=one.slug
            )
            for one in known.schedules
        ],
        "paused": known.paused,
        "tags": known.tags,
        "parameters": {
            key: value
            for key, value in known.parameters.items()
            if key in schema["properties"]
            and not validate({key: value}, schema, ignore_required=True)
        },
        "concurrency_limit": limit
        and ConcurrencyLimitConfig(
            limit=limit.limit, **(options.model_dump(exclude_none=True) if options else {})
        ),
    }


def _as_switched(trigger: DeploymentEventTrigger) -> DeploymentEventTrigger:
    """The trigger, on or off as the automations of its name are."""
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(str(trigger.name))
    enabled = not known or any(automation.enabled for automation in known)
    return trigger.model_copy(update={"enabled": enabled})
