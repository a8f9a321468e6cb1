"""`python -m flows.pool_worker`: Prefect's `worker start`, whose runs stay cancellable.

It hears of a cancel by a websocket, and looks for cancelled runs itself once that is closed: with a
client that has never reached a server, and gives up for good at the first refused connections. So
after Prefect's server was away for seconds, no run at work could be cancelled any more.
"""

import sys
from typing import Self

from prefect._internal.observers import FlowRunCancellingObserver
from prefect.cli import app
from prefect.runner import _flow_run_executor, runner
from prefect.workers import base


class PatientObserver(FlowRunCancellingObserver):
    """Prefect's own, which looks once while the server is there."""

    async def __aenter__(self) -> Self:
        """Begin as Prefect's own does; from then on the client waits for the server."""
        await super().__aenter__()  # type: ignore[no-untyped-call]
        await self._check_for_cancelled_flow_runs()  # type: ignore[no-untyped-call]
        return self


if __name__ == "__main__":
    for module in (base, runner, _flow_run_executor):
        module.FlowRunCancellingObserver = PatientObserver  # type: ignore[attr-defined]
    sys.argv[1:1] = ["worker", "start"]
    app()
