"""Kernel locks on files: a process that dies releases them."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold `path`; waits while another process holds it."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing alone would not do where a child was forked meanwhile: it has the file, too.
            fcntl.flock(lock, fcntl.LOCK_UN)


def take(path: Path, *, shared: bool = False) -> IO[str] | None:
    """The open file, held until it is closed; None where another process holds it.

    Args:
        path: created if missing.
        shared: lock for reading: others may do so at the same time.
    """
    lock = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    lock.seek(0)
    return lock


def is_held(path: Path) -> bool:
    """Whether another process (or another open file of this one) holds `path`."""
    if not path.exists():
        return False
    if (lock := take(path, shared=True)) is None:
        return True
    lock.close()
    return False
