"""The stages of a flow run are forks of one process that has imported torch and transformers.

Each stage has a DVC of its own here, so it is the flow's process that starts the fork server, once
for all of them (`tasks.workspace.fork_servers`).
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flows.environment import stage_environment
from flows.graph import PlannedStage
from flows.placing import pool_of
from tasks.running.forked import FORK_SERVER
from tasks.workspace.fork_servers import start_fork_server
from tasks.workspace.processes import signals_deferred


@contextmanager
def forks(stages: Sequence[PlannedStage], root: Path, execution: str) -> Iterator[None]:
    """A fork server for the stages that run meanwhile, if it spares at least one its imports.

    Call it in the main thread.

    Args:
        stages: those of the flow run; only what runs here and uses the accelerator has imports to
            be spared.
        root: the workspace.
        execution: id of the pipeline execution.
    """
    heavy = [
        planned for planned in stages if planned.stale and planned.gpu and not pool_of(planned)
    ]
    if len(heavy) < 2:
        yield
        return
    started = None
    try:
        with signals_deferred():
            environment = stage_environment(root, execution)
            # Stages get their signals from the processes that DVC knows.
            started = start_fork_server(root, environment, own_session=True)
        if started is not None:
            os.environ[FORK_SERVER] = started[0]
        yield
    finally:
        os.environ.pop(FORK_SERVER, None)
        if started is not None:
            # No stage is left by now; one that were would hear of it, and write a checkpoint.
            started[1].kill()
            started[1].communicate()
