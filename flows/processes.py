"""Child processes that leave nothing behind, however this process ends.

Each child leads a session of its own, so that it and all that it starts can be signalled as one
group and a Ctrl-C in the terminal reaches it only through us. Should this process be killed
without a chance to clean up, the kernel tells the child (`PR_SET_PDEATHSIG`); the stages do the
same towards DVC.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tasks.workspace.processes import adopt_orphans, die_with, signals_deferred

_GRACE_SECONDS = 8.0
"""For a child that was just started when we were asked to end."""


def start(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start `command` with stdout and stderr going to `output`; it ends when this process does.

    What a signal's handler raises meanwhile is raised once the child has ended again.
    Call it in the main thread: the kernel's signal comes when the *thread* that forked ends.
    """
    # So that `_is_gone` can bury what the child leaves behind.
    adopt_orphans()
    process = None
    try:
        with signals_deferred():
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
    except BaseException:
        if process is not None:
            end(process, grace_seconds=_GRACE_SECONDS)
        raise
    return process


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the process and all that it started, as far as anyone is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end(process: subprocess.Popen[bytes], *, grace_seconds: float) -> None:
    """Ask the process and all that it started to end, wait, then kill what is left."""
    signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while not _is_gone(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    signal_group(process, signal.SIGKILL)
    process.wait()


def lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """What the process and its children write, line by line, until none of them is left.

    The pipe closes when the last of them ends. Children that the process leaves behind are asked
    to end (DVC, killed, leaves its stage). A daemon that left the group with the pipe in its hand
    does not hold us: it is enough that the process and its group are gone.
    """
    assert process.stdout is not None, "start it with output=subprocess.PIPE"
    pending = b""
    alone = False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if process.poll() is not None and not alone:
                alone = True
                signal_group(process, signal.SIGTERM)
            if selector.select(timeout=1.0):
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    break
                *whole, pending = (pending + chunk).split(b"\n")
                yield from whole
            elif _is_gone(process):
                break
    if pending:
        yield pending


def _is_gone(process: subprocess.Popen[bytes]) -> bool:
    """Whether neither the process nor anything of its group is left."""
    if process.poll() is None:
        return False
    with suppress(ChildProcessError):  # None of the group is our child.
        while os.waitpid(-process.pid, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False
