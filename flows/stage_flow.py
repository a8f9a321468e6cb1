"""A stage as a flow run of its own, in a work pool: ordered, run by a worker there, waited for.

The worker's machine runs `flows.remote_stage` in its clone; everything but the order's name and its
ending goes by git, DVC's remote and MLflow.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_run_logger, runtime
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments import run_deployment
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Cancelling, Failed
from prefect.types.entrypoint import EntrypointType

from flows.reach import is_absence
from flows.remote_stage import serve_order
from flows.stages import Ending
from flows.states import ending_of, task_state
from tasks.workspace.driver_lock import WorkspaceBusyError
from tasks.workspace.orders import Order

NAME = "rlhf-stage"
CLONE = "RLHF_CLONE"
"""On a worker's machine: its clone of the repository."""
LOOK_SECONDS = 2.0
REMIND_SECONDS = 60.0
UNFINISHED = [
    StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING,
    StateType.PAUSED,
]  # fmt: skip

DELETED = "its flow run was deleted; the stage itself may still run there, and answer"

Logger = logging.Logger | logging.LoggerAdapter[Any]


def name_of_this_run() -> str:
    """The stage and its order, such as `ppo@r1 3fa2c1d09b8e`."""
    parameters = runtime.flow_run.parameters
    return run_name(parameters["stage"], parameters["revision"])


def run_name(stage: str, revision: str) -> str:
    """Of a flow run that runs a stage."""
    return f"{stage} {revision[:12]}"


@flow(
    name=NAME,
    flow_run_name=name_of_this_run,
    persist_result=False,
    description="One stage of the pipeline, in the clone of a worker.",
)
def remote_stage(*, stage: str, revision: str, execution: str = "") -> State[None]:
    """Run one stage of an order.

    Args:
        stage: DVC's name of it.
        revision: the order: a commit, branch or tag on the git remote.
        execution: id of the pipeline execution in MLflow. Empty: one of its own.
    """
    clone = Path(os.environ.get(CLONE) or Path.cwd())
    try:
        ending = serve_order(clone, stage, revision, execution, logger=get_run_logger())
    except WorkspaceBusyError as error:
        return Failed(name="Busy", message=str(error))
    return task_state(ending)


def register(
    pool: str,
    kind: str,
    variables: Mapping[str, Any],
    template: Mapping[str, Any] | None = None,
) -> None:
    """Make the work pool where there is none, and the deployment that runs stages in it.

    Args:
        pool: its name.
        kind: `process`, `docker`, `kubernetes`, `slurm`: what its workers start.
        variables: of the job, as this kind of pool has them.
        template: of the job; None: that of the kind.

    Raises:
        ValueError: there is a pool of that name and another kind.
    """
    with get_client(sync_client=True) as client:
        try:
            made = WorkPoolCreate(name=pool, type=kind, base_job_template=dict(template or {}))
            client.create_work_pool(made)
        except ObjectAlreadyExists:
            if (found := client.read_work_pool(pool).type) != kind:
                raise ValueError(f"the work pool {pool} is of type {found}, not {kind}") from None
            if template is not None:
                changed = WorkPoolUpdate(base_job_template=dict(template))
                client.update_work_pool(pool, changed)
    RunnerDeployment.from_flow(
        remote_stage,
        pool,
        work_pool_name=pool,
        job_variables=dict(variables),
        entrypoint_type=EntrypointType.MODULE_PATH,
    ).apply()


def run_there(
    order: Order, pool: str, execution: str, *, logger: Logger, is_cancelled: Callable[[], bool]
) -> Ending:
    """Have a worker of `pool` run an order, and wait for it.

    Where a run of this order has not ended yet (whoever ordered it died), that one is waited for;
    where it is cancelled or deleted, which was meant for others, another is ordered. So it is where
    a run has not started and waits in another pool, or in one that was deleted. Where the
    stage is no longer wanted (`is_cancelled`), or an exception comes from outside, the run is
    cancelled unless another flow run waits for it; the exception propagates.
    """
    with get_client(sync_client=True) as client:
        while True:
            known = _unfinished(client, order, pool)
            joined = known.id if known else None
            place = (known and known.work_pool_name) or pool
            try:
                found = joined or _ordered(order, pool, execution)
            except ObjectNotFound:
                message = (
                    f"nobody has registered the pool {pool} with Prefect; "
                    f"`python -m flows.worker {pool}` in a clone does, and works for it"
                )
                return Ending("bad_input", message)
            logger.info("%s: flow run %s in the pool %s", order.stage, found, place)
            try:
                state = _end(client, found, place, logger, is_cancelled)
            except _LeftBehindError:
                continue
            except BaseException as error:
                if joined is None or not _is_anothers(client, joined):
                    with suppress(ObjectNotFound):
                        client.set_flow_run_state(found, Cancelling())
                if isinstance(error, _UnwantedError):
                    return Ending("refused", "it is no longer wanted")
                raise
            if joined is None or not (state is None or state.is_cancelled()):
                return Ending("refused", DELETED) if state is None else ending_of(state)


def _ordered(order: Order, pool: str, execution: str) -> UUID:
    """A new flow run, shown below the one that orders it."""
    ordered = run_deployment(
        f"{NAME}/{pool}",
        parameters={"stage": order.stage, "revision": order.commit, "execution": execution},
        flow_run_name=run_name(order.stage, order.commit),
        timeout=0,
    )
    assert isinstance(ordered, FlowRun)
    return ordered.id


def _unfinished(client: SyncPrefectClient, order: Order, pool: str) -> FlowRun | None:
    """A run of this order that somebody works on, or that waits for a worker of this pool.

    One that waits elsewhere, maybe for ever, is cancelled unless another flow run waits for it.
    """
    filters = FlowRunFilter(
        name=FlowRunFilterName(any_=[run_name(order.stage, order.commit)]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED)),
    )
    found = client.read_flow_runs(flow_run_filter=filters)
    at_work = [run for run in found if not _waits(run)]
    waiting = [run for run in found if _waits(run) and run.work_pool_name == pool]
    for run in found:
        if _waits(run) and run.work_pool_name != pool and not _is_anothers(client, run.id):
            with suppress(ObjectNotFound):
                client.set_flow_run_state(run.id, Cancelling())
    return next(iter([*at_work, *waiting]), None)


def _waits(run: FlowRun) -> bool:
    """Whether no worker has taken it up."""
    return run.state is None or run.state.is_scheduled()


def _is_anothers(client: SyncPrefectClient, flow_run: UUID) -> bool:
    """Whether it is of another flow run than ours that has not ended, or of a person."""
    try:
        task_run = client.read_flow_run(flow_run).parent_task_run_id
        orderer = task_run and client.read_task_run(task_run).flow_run_id
        if orderer is None:
            return True
        state = client.read_flow_run(orderer).state
    except ObjectNotFound:
        return False
    return str(orderer) != runtime.flow_run.id and (state is None or not state.is_final())


class _UnwantedError(Exception):
    """Who has ordered the stage was cancelled."""


class _LeftBehindError(Exception):
    """The pool was deleted and made anew: no worker takes what was ordered in the former one."""


def _end(
    client: SyncPrefectClient,
    flow_run: UUID,
    pool: str,
    logger: Logger,
    is_cancelled: Callable[[], bool],
) -> State[None] | None:
    """The last state of a flow run, once it has one; None: it was deleted.

    Reminds of a pool that is paused, and of workers that are not there.

    Raises:
        _UnwantedError: nobody wants it any more.
        _LeftBehindError: it waits in a pool that was deleted, and there is a new one.
    """
    remind_at = time.monotonic() + REMIND_SECONDS
    while True:
        try:
            run = client.read_flow_run(flow_run)
            if run.state is not None and run.state.is_final():
                return run.state
            if is_cancelled():
                raise _UnwantedError
            _require_place(client, run, pool)
            if time.monotonic() > remind_at:
                remind_at = time.monotonic() + REMIND_SECONDS
                _remind(client, pool, logger)
        except ObjectNotFound:
            return None
        except httpx.HTTPError as error:
            if not is_absence(error):
                raise
            logger.warning("Prefect's server is away; still waiting (%s)", error)
        time.sleep(LOOK_SECONDS)


def _require_place(client: SyncPrefectClient, run: FlowRun, pool: str) -> None:
    """Do nothing where a worker of the pool can take a run, or could once there is a pool again.

    Raises:
        _LeftBehindError: see there.
    """
    if _waits(run) and run.work_pool_name is None:
        with suppress(ObjectNotFound):
            client.read_work_pool(pool)
            raise _LeftBehindError


def _remind(client: SyncPrefectClient, pool: str, logger: Logger) -> None:
    try:
        paused = client.read_work_pool(pool).is_paused
        workers = client.read_workers_for_work_pool(pool)
    except ObjectNotFound:  # The pool was deleted; a worker makes it anew.
        paused, workers = False, []
    if paused:
        logger.warning(
            "The work pool %s is paused; `prefect work-pool resume %s` lets its workers go on",
            pool,
            pool,
        )
    elif not any(worker.status == "ONLINE" for worker in workers):
        logger.warning(
            "No worker of the pool %s is online; `python -m flows.worker %s` starts one", pool, pool
        )
