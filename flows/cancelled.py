"""A cancel that no worker hears: of one run of a sweep, or of a flow in a terminal.

A worker ends the process of an ordered run. These have none of their own, and Prefect would show
them as `Cancelling` for ever: a run that is being cancelled can end as `Cancelled` alone.
"""

from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from flows.artifacts import left_out_while_away


def unless_cancelled(state: State[Any]) -> State[Any]:
    """How a stage of this flow run has ended; `Cancelled` if somebody has cancelled the run."""
    with left_out_while_away("whether somebody has cancelled this run"):
        if _is_cancelled(UUID(str(runtime.flow_run.id))):
            return Cancelled(message="somebody has cancelled the run")
    return state


def is_cancelled(flow_run: UUID) -> bool:
    """Whether somebody has cancelled a flow run; False where Prefect's server does not say."""
    with suppress(httpx.HTTPError):
        return _is_cancelled(flow_run)
    return False


def _is_cancelled(flow_run: UUID) -> bool:
    with suppress(ObjectNotFound), get_client(sync_client=True) as client:
        now = client.read_flow_run(flow_run).state
        return now is not None and now.is_cancelling()
    return False
