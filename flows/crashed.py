"""Flow runs whose process died silently: Prefect would show them as running for ever."""

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

MESSAGE = "Its process died silently (killed?). Finished stages and checkpoints are kept."


def report_crash(flow_run: str) -> None:
    """Report to Prefect that `flow_run` and its tasks are no longer running.

    Of a run that Prefect knows to have ended (its runner reported the crash), the tasks may still
    be shown as running. Does nothing for a run that another server knew.
    """
    with get_client(sync_client=True) as client:
        try:
            known = client.read_flow_run(UUID(flow_run))
        except ObjectNotFound:
            return
        ours = FlowRunFilter(id=FlowRunFilterId(any_=[known.id]))
        for task_run in client.read_task_runs(flow_run_filter=ours):
            if task_run.state is None or not task_run.state.is_final():
                client.set_task_run_state(task_run.id, Crashed(message=MESSAGE), force=True)
        if known.state is None or not known.state.is_final():
            client.set_flow_run_state(known.id, Crashed(message=MESSAGE), force=True)
