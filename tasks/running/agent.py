"""`torch.distributed.run` that ends the others in time when one of its processes has died.

torch gives them thirty seconds: `--shutdown-timeout` and its variable hold where the launcher gets
a signal, not where a process dies (see pytorch/pytorch#192815). One that waits in a library, such
as NCCL's, for what the dead one will never send hears no SIGTERM, and would take all of them.

With `--nnodes` one of these runs on each host. torch's do not hear of a death on another host, and
would leave the deaf ones there for ever; ours ask the store that all of them share.

A signal that asks the stage to end is passed on, and its processes end by themselves: torch kills
them soon afterwards, in the middle of a checkpoint that takes longer.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from signal import Signals
from types import FrameType
from typing import Any, cast

from torch._C._distributed_c10d import Store
from torch.distributed import run
from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api

from rlhf.silent_hosts import end_connections_to_silent_hosts
from tasks.params.loading import ParamsError
from tasks.running import launch
from tasks.running.meeting import require_free, require_resolved
from tasks.running.outcome import EXIT_CODES
from tasks.running.signals import DEATH_OF_ANOTHER, LAUNCHED_BY
from tasks.workspace.processes import children

SECONDS = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", launch.SECONDS))
"""From the word of a death to SIGKILL."""

DEATH = "death"
"""What the store of several hosts holds once a process has died."""


class Processes(multiprocessing.SubprocessContext):
    """torch's own, with the timeout that was asked for wherever torch asks for another."""

    died_elsewhere = False
    """One on another host has ended with an error."""

    def close(self, death_sig: Signals | None = None, timeout: int = SECONDS) -> None:
        """End those that still run; from the signal they know whether that is for a death."""
        if self.died_elsewhere or self.has_a_death():
            death_sig = DEATH_OF_ANOTHER
        super().close(death_sig, min(timeout, SECONDS))

    def has_a_death(self) -> bool:
        """Whether one of them has ended with an error."""
        return any(each.proc.poll() for each in self.subprocess_handlers.values())


def _pass_on(number: int, _frame: FrameType | None) -> None:
    """Have the processes hear what this one has heard; without any, end."""
    found = children(os.getpid())
    if not found:
        sys.exit(128 + number)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Agent(LocalElasticAgent):
    """torch's own, which ends its processes when one on another host has died, or the store has."""

    passes_on = False
    """What asks it to end is for its processes; else whoever asks tells them."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # The store at which all meet is connected by now.
        end_connections_to_silent_hosts()
        started: dict[int, Any] = super()._start_workers(worker_group)
        if self.passes_on:  # From here on: a meeting that waits is left to the signal itself.
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, _pass_on)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if (worker_group.group_world_size or 1) > 1 and self._has_a_death_elsewhere():
            cast(Processes, self._pcontext).died_elsewhere = True
            sys.exit(1)  # On its way out it ends its processes.
        found: RunResult = super()._monitor_workers(worker_group)
        return found

    def _has_a_death_elsewhere(self) -> bool:
        """Ask the store, or tell it of one here."""
        assert isinstance(self._pcontext, Processes)
        here, store = self._pcontext.has_a_death(), cast(Store, self._store)
        try:
            if here:
                store.set(DEATH, "")
            return not here and store.check([DEATH])
        except RuntimeError:  # The first host's launcher has ended, or cannot be reached.
            return not here


def require_place(command_line: Sequence[str]) -> None:
    """Check where the launchers of several hosts are to meet.

    Raises:
        ParamsError: the host's name does not resolve, or the port is taken on the first one.
    """
    given = run.parse_args(command_line)
    if given.standalone or given.rdzv_backend != "static" or given.master_port is None:
        return  # torch finds a port of its own.
    require_resolved(given.master_addr)
    if given.node_rank == 0:
        require_free(given.master_port)


def without_torchs_signals(command_line: Sequence[str]) -> list[str]:
    """For torch, which would kill the processes; or as it is, where it says who hears signals."""
    if "--signals-to-handle" in command_line:
        return list(command_line)
    Agent.passes_on = True
    return ["--signals-to-handle", "SIGQUIT", *command_line]


if __name__ == "__main__":
    try:
        require_place(sys.argv[1:])
    except ParamsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_CODES["bad_input"])
    os.environ[LAUNCHED_BY] = str(os.getpid())
    sys.argv[1:] = without_torchs_signals(sys.argv[1:])
    multiprocessing.SubprocessContext = Processes  # type: ignore[misc]
    api.LocalElasticAgent = Agent  # type: ignore[attr-defined]
    multiprocessing.api.logger.setLevel(logging.CRITICAL)  # Each signal that it sends, for one.
    try:
        run.main()
    except ChildFailedError as error:
        if error.get_first_failure()[1].exitcode == EXIT_CODES["interrupted"]:
            sys.exit(EXIT_CODES["interrupted"])
        raise
