"""Flow runs whose process died silently: Prefect would show them as running for ever."""

import os
import signal
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows import notices
from tasks.workspace.processes import hear_of_the_parents_death

WORKER = "RLHF_WORKER"
"""Environment variable with the process id of the worker, for the processes that it starts."""
_WORKER_IS_GONE = signal.SIGUSR2
"""Not SIGTERM itself, of which Prefect wants its own handler."""
_is_ending = threading.Lock()
MESSAGE = "Its process died silently (killed?). Finished stages and checkpoints are kept."


def report_crash(flow_run: str) -> None:
    """Report to Prefect that `flow_run`, its tasks and the runs within it run no longer.

    Not the stages that it has ordered in work pools, which other processes run.
    Of a run that Prefect knows to have ended (its runner reported the crash), the tasks may still
    be shown as running; so may those of a run that is to be tried again. Does nothing for a run
    that another server knew.
    """
    with get_client(sync_client=True) as client:
        try:
            known = client.read_flow_run(UUID(flow_run))
        except ObjectNotFound:
            return
        _report(client, known)


def what_it_did_has_crashed(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """For `on_crashed` of a flow: its worker says so, of the run alone."""
    report_crash(str(flow_run.id))
    notices.tell_the_end(flow, flow_run, state)


def end_with_the_worker() -> None:
    """Where a worker has started this process: get SIGTERM when the worker dies.

    Nobody could cancel a run any more whose worker is gone, and a new worker knows nothing of it.
    """
    if worker := os.environ.get(WORKER):
        signal.signal(_WORKER_IS_GONE, _end)
        hear_of_the_parents_death(_WORKER_IS_GONE)
        if os.getppid() != int(worker):  # It died before we could ask.
            signal.raise_signal(_WORKER_IS_GONE)


def _end(*_: object) -> None:
    """End by one SIGTERM, with words for nobody.

    The kernel tells of each thread of the worker that dies: a second SIGTERM would break off what
    the first has begun. Who writes into the worker's pipe now gets a BrokenPipeError, and Prefect
    would call the run failed.
    """
    if not _is_ending.acquire(blocking=False):
        return  # A flag could be read by two of them before one sets it.
    with Path(os.devnull).open("wb") as nobody:
        for stream in (1, 2):
            os.dup2(nobody.fileno(), stream)
    signal.raise_signal(signal.SIGTERM)


def _report(client: SyncPrefectClient, known: FlowRun) -> None:
    ours = FlowRunFilter(id=FlowRunFilterId(any_=[known.id]))
    for task_run in client.read_task_runs(flow_run_filter=ours):
        if task_run.state is None or not task_run.state.is_final():
            client.set_task_run_state(task_run.id, Crashed(message=MESSAGE), force=True)
    if known.state is None or not (known.state.is_final() or known.state.is_scheduled()):
        client.set_flow_run_state(known.id, Crashed(message=MESSAGE), force=True)
        if known.parent_task_run_id is None:
            notices.tell_once(known, Crashed(message=MESSAGE))
    within = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[known.id]))
    for inner in client.read_flow_runs(flow_run_filter=within):
        # A stage in a work pool has a machine of its own: it goes on, and the next run joins it.
        if inner.work_pool_name is None:
            _report(client, inner)
