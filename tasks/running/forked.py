"""A stage's process has the fork server run the stage, and ends as it does.

DVC knows only this process, which has imported next to nothing; `tasks.running.fork_server` says
what the other one is. A SIGTERM is passed on, a SIGKILL here is one there, and its end is ours.
Where there is no fork server, or none for this stage, this process runs the stage itself.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from tasks.workspace.processes import STARTED_BY

FORK_SERVER = "RLHF_FORK_SERVER"
"""The server's address, without the zero byte that makes it an abstract one (Linux). For stages
that DVC starts, not for the processes that these start, so no stage sees it."""

HEAVY = ("base", "sft", "sample", "reward", "ppo", "evaluate", "best_of_n")
"""Modules of the stages that import torch and transformers; the others are faster alone."""

INTERRUPTED = 143
"""As `tasks.running.outcome` has it, whose imports would cost what is to be saved."""

MESSAGE_BYTES = 1 << 20
STATUS = struct.Struct("i")
"""First the session of the stage's process, at its end the stage's exit code, or the number of the
signal that killed it, negative."""


@dataclass(frozen=True, slots=True)
class Request:
    """What makes a fork the process that asks; its three standard streams go with it."""

    module: str
    arguments: list[str]
    folder: str
    interpreter: str
    environment: dict[str, str]
    interruptible: bool
    """False where Ctrl-C was ignored from the start (nohup)."""


def let_fork_server_run() -> None:
    """End as the stage does that the fork server runs for us; return if we have to run it."""
    address = os.environ.pop(FORK_SERVER, None)
    module = sys.orig_argv[2] if sys.orig_argv[1:2] == ["-m"] else ""
    if address is None or module.removeprefix("tasks.") not in HEAVY:
        return
    asked = Request(
        module=module,
        arguments=sys.argv[1:],
        folder=str(Path.cwd()),
        interpreter=interpreter(),
        environment={**os.environ, STARTED_BY: str(os.getppid())},
        interruptible=signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
    )
    stage = _Stage()
    with stage.signals_heard(asked.interruptible):
        try:
            server, stage.in_our_session, stage.pidfd = _ask(address, asked)
        except _NoForkError:
            return
        _end_as(_status(server, stage.pidfd))


class _NoForkError(Exception):
    """The stage does not run as a fork."""


def _ask(address: str, asked: Request) -> tuple[socket.socket, bool, int]:
    """The connection that will say how the stage ended, whether it is in our session, its pidfd.

    Raises:
        _NoForkError: there is no server, or it has refused.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.connect(f"\0{address}")
        if user_of(server) != os.geteuid():
            raise _NoForkError
        socket.send_fds(server, [json.dumps(asdict(asked)).encode()], [0, 1, 2])
        started, descriptors, _, _ = socket.recv_fds(server, MESSAGE_BYTES, 1)
        (pidfd,) = descriptors
    except (OSError, ValueError):
        raise _NoForkError from None
    return server, STATUS.unpack(started)[0] == os.getsid(0), pidfd


def interpreter() -> str:
    """What runs this process, by whichever of its names, with the packages of which environment."""
    return f"{Path(sys.executable).resolve()} for {sys.prefix}"


def user_of(connection: socket.socket) -> int:
    """The user whose process is at the other end: anybody may take or use an abstract address."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", found)[1])


class _Stage:
    """The process that runs the stage, once there is one."""

    def __init__(self) -> None:
        self.pidfd: int | None = None
        self.in_our_session = True
        """Whether whoever signals the session we are in signals that process, too."""
        self._asked = False

    @contextlib.contextmanager
    def signals_heard(self, interruptible: bool) -> Iterator[None]:
        """Pass the first SIGTERM on, and each Ctrl-C that the stage does not get by itself."""
        numbers = [signal.SIGTERM, *([signal.SIGINT] if interruptible else [])]
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self.pidfd is None:
            os._exit(INTERRUPTED)
        heard = self._asked if number == signal.SIGTERM else self.in_our_session
        self._asked = self._asked or number == signal.SIGTERM
        if not heard:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


def _status(server: socket.socket, pidfd: int) -> int:
    """How the stage ended. A server that dies has its stages end, and that takes a moment."""
    if message := server.recv(STATUS.size):
        return int(STATUS.unpack(message)[0])
    select.select([pidfd], [], [])
    return INTERRUPTED


def _end_as(status: int) -> None:
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
