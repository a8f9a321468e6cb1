"""Runs `dvc` as a child that dies with us, gets our signals and leaves no process behind.

DVC alone leaves its stage running as an orphan when it is terminated, and the next `dvc repro`
starts a second writer. So the child gets a session of its own: a signal goes to all of it, and
we wait until all of it has gone before we return.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from tasks.workspace.account import account
from tasks.workspace.processes import adopt_orphans, die_with, signals_deferred

DVC = (sys.executable, "-P", str(Path(__file__).with_name("quick_dvc.py")))
"""DVC as our drivers run it, in a workspace of any revision."""

GRACE_SECONDS = 60.0
"""A stage that was asked to stop has this long to write its checkpoint."""


class DvcProcess:
    """A running `dvc ...` with everything that it started. Output is inherited."""

    def __init__(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        """Start it. Call this before other threads exist: it forks with Python code in between."""
        # Stages may outlive dvc.
        adopt_orphans()
        with signals_deferred():
            self._process = subprocess.Popen(
                [*DVC, *arguments],
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        self.signalled: int | None = None
        """The first signal that we passed on, None if there was none."""
        self._patience: threading.Timer | None = None

    def wait(self) -> int:
        """The exit code of dvc, once it and all stages have gone; passes signals on meanwhile.

        SIGINT and SIGTERM go to every process of the session, so that a stage writes its
        checkpoint. A Ctrl-C after another signal kills, and so do `GRACE_SECONDS` after a SIGTERM;
        after a Ctrl-C a stage may take a step of any length to its end. A second SIGTERM does
        nothing: `timeout`, make and a service manager may each send one for one cause.
        """
        with _handlers(self._pass_on):
            code = self._process.wait()
            self._wait_for_stages()
        return code

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        again, self.signalled = self.signalled is not None, self.signalled or number
        if number == signal.SIGINT:
            self._send(signal.SIGKILL if again else number)
        elif self._patience is None:
            self._send(number)
            self._patience = threading.Timer(GRACE_SECONDS, self._send, [signal.SIGKILL])
            self._patience.daemon = True
            self._patience.start()

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _wait_for_stages(self) -> None:
        """Wait for what is left of the session after dvc itself has gone."""
        if self.signalled is None:
            self._send(signal.SIGTERM)  # dvc died alone: its stage must not continue as an orphan
        deadline = time.monotonic() + GRACE_SECONDS
        while self._reap():
            if time.monotonic() > deadline:
                self._send(signal.SIGKILL)
            time.sleep(0.05)

    def _reap(self) -> bool:
        """Collect ended processes of the session; whether any are left."""
        with suppress(ChildProcessError):
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
            return True
        return False


def dvc_environment(base: Mapping[str, str]) -> dict[str, str]:
    """What dvc and its stages see."""
    # Stages call `python`: it must be this interpreter, even if its environment is not activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{base.get('PATH', '')}"
    quiet = {"DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1", "RLHF_SHIPPER": "driver"}
    return {**account(), **base, **quiet, "PATH": path}


@contextmanager
def _handlers(handler: object) -> Iterator[None]:
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # As the shell has it for a job in &.
        numbers.append(signal.SIGINT)
    before = [signal.signal(number, handler) for number in numbers]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
