"""No child process outlives its parent (Linux; elsewhere these functions do nothing).

On request the kernel sends a process SIGTERM when its parent dies, and makes it the parent of
orphans among its descendants.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

# Loaded here, because between fork and exec nothing should be loaded any more.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


STARTED_BY = "RLHF_STARTED_BY"
"""Names DVC's process to one that runs a stage in the place of DVC's own child."""


def started_by() -> int:
    """The process that started this stage: our parent, or the one that the environment names."""
    return int(os.environ.get(STARTED_BY) or os.getppid())


def adopt_orphans() -> None:
    """Adopt orphans of our children, so that we can wait for them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hear_of_the_parents_death(number: signal.Signals = signal.SIGTERM) -> None:
    """Get this signal when the parent dies; more exactly, when the thread that forked us ends.

    A parent with several threads that is killed may send it several times.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))


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


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Hear SIGTERM and SIGINT after the block, in which a process is started with a `preexec_fn`.

    Python runs hooks at such a fork (`os.register_at_fork`; `logging` has some), and ignores what
    is raised in them: a handler that raises there has heard the signal for nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Handlers run in the main thread.
        return
    heard: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for one in heard:
            signal.raise_signal(one)


def children(parent: int) -> list[int]:
    """The processes that a process has started or adopted and not yet waited for."""
    found: list[int] = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text(encoding="ascii").split())
    return found


def name_this_process(name: str) -> None:
    """What `top` shows of this process; its first 15 letters."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()))


def flush_c_streams() -> None:
    """Write what libraries in C still hold back, before an end that Python has no part in."""
    if _LIBC is not None:
        _LIBC.fflush(None)


def _prctl(option: int, value: "int | ctypes.Array[ctypes.c_char]") -> None:
    if _LIBC is not None:
        _LIBC.prctl(option, value)
