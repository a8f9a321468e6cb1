"""No child process outlives its parent (Linux; elsewhere these functions do nothing).

On request the kernel sends a process SIGTERM when its parent dies, and makes it the parent of
orphans among its descendants.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# Loaded here, because between fork and exec nothing should be loaded any more.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Adopt orphans of our children, so that we can wait for them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hear_of_the_parents_death() -> None:
    """Get SIGTERM when the parent dies; more exactly, when the thread that forked us ends."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def die_with(parent: int) -> Callable[[], None]:
    """For `preexec_fn` of a child: it gets SIGTERM when `parent` (`os.getpid()`) dies.

    Start such a child in the main thread: the kernel's signal comes when the thread that forked
    ends.
    """

    def between_fork_and_exec() -> None:
        hear_of_the_parents_death()
        if os.getppid() != parent:  # It died before we could ask.
            os.kill(os.getpid(), signal.SIGKILL)

    return between_fork_and_exec


def children(parent: int) -> list[int]:
    """The processes that a process has started or adopted and not yet waited for."""
    found: list[int] = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text(encoding="ascii").split())
    return found


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(option, value)
