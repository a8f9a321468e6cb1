"""What stays of a flow run: its row in MLflow, and the results in the workspace."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prefect import get_run_logger, runtime
from prefect.client.schemas.objects import State

from flows.artifacts import publish_runs
from tasks.params.loading import Params
from tasks.promoting.registration import tag_and_register
from tasks.reporting.result_table import result_table
from tasks.reporting.run_results import read_results, write_summary
from tasks.reporting.summary import has_worked
from tasks.reporting.unfinished import unfinished_stages
from tasks.running.outcome import seconds_of_stages
from tasks.tracking.execution_record import record_end, record_start
from tasks.tracking.shipper import Shipper
from tasks.tracking.spool import Status
from tasks.workspace.dvc_lockfile import read_lock
from tasks.workspace.execution import Execution, last_execution, lock_digest, save_execution
from tasks.workspace.files import DamagedNoteError
from tasks.workspace.shared_weights import share_idle_outputs

SHIPPING_SECONDS = 60.0
INTERRUPTED_SHIPPING_SECONDS = 3.0
"""Prefect kills a cancelled flow after 30 seconds; most of them are for the stage's checkpoint."""


@contextmanager
def recorded(root: Path, flow_run: str, params: Params) -> Iterator[list[State[None]]]:
    """Ship to MLflow beside the work; afterwards write the summary, however the work ended.

    Yields a list for the flow's final state; an interrupted one has none.
    """
    # A run that is tried again is the same execution.
    started, lock_before = time.monotonic() - seconds_so_far(root, flow_run), read_lock(root)
    record_start(root, flow_run, params, flow_links())
    shipper = Shipper(root)
    patience = INTERRUPTED_SHIPPING_SECONDS
    states: list[State[None]] = []
    try:
        yield states
        patience = SHIPPING_SECONDS
    finally:
        ran = has_worked(root, flow_run)
        # Where nothing was to be done there is nothing to compare. DVC notes what it restores.
        if ran or read_lock(root) != lock_before:
            status = mlflow_status(states)
            record_end(
                root,
                flow_run,
                status=status,
                message=" ".join(s.message or "" for s in states if s.name != "Completed"),
                seconds=time.monotonic() - started,
                results=read_results(root, params),
            )
        arrived = shipper.close(patience)
        if ran:
            # Finished for `make repro`, which would otherwise continue this execution.
            execution = Execution(id=flow_run, key=f"flow {flow_run}", unfinished=False)
            execution.seconds, execution.lock = time.monotonic() - started, lock_digest(root)
            save_execution(root, execution)
        # None has begun where it was interrupted before.
        done = bool(states) and all(state.name == "Completed" for state in states)
        stale = [state for state in states if state.name == "Stale"]
        unfinished = () if stale else unfinished_stages(root) or ()
        summary = write_summary(root, params, whole=done, unfinished=unfinished)
    if arrived:
        tag_and_register(root)
    else:
        get_run_logger().warning("Not everything is in MLflow yet; `make sync` sends the rest.")
    share_idle_outputs(root)
    publish_runs(root, flow_run)
    get_run_logger().info("\n%s", result_table(summary))


def seconds_so_far(root: Path, flow_run: str) -> float:
    """What earlier tries of a flow run took; of one that was killed, what its stages did."""
    stages = seconds_of_stages(root, flow_run)
    with suppress(DamagedNoteError):  # It is written anew in the end.
        last = last_execution(root)
        return max(last.seconds, stages) if last is not None and last.id == flow_run else stages
    return stages


def mlflow_status(states: list[State[None]]) -> Status:
    """How the parent run in MLflow ended, by the flow's final state; none: it was interrupted."""
    if not states:
        return "KILLED"
    if states[0].name == "Waiting":
        return "SCHEDULED"
    return "FINISHED" if states[0].name in ("Completed", "Stale") else "FAILED"


def flow_links() -> dict[str, str]:
    """Tags that lead from MLflow to the flow run; its page only where a server stays."""
    page = str(runtime.flow_run.ui_url)
    tags = {"prefect.flow_run": str(runtime.flow_run.id)}
    return tags | ({"prefect.page": page} if page.startswith("http") else {})
