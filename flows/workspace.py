"""One flow run at a time in a workspace.

Two would give DVC the same stage twice, and it refuses the second in the middle of a run. The
kernel keeps the lock, so nobody can die and leave it behind; the file's text is only for people
and for telling whether the last run came to an end.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LOCK_FILE = Path(".work") / "flow.lock"


class WorkspaceBusyError(Exception):
    """Another flow run works here; the message says which."""


@contextmanager
def sole_use(root: Path, flow_run: str) -> Iterator[str | None]:
    """Hold the workspace for `flow_run`; yields the id of a run that died in here, if one did.

    Raises:
        WorkspaceBusyError: another run holds it.
    """
    with _locked(root) as lock:
        last = lock.read().split()
        _note(lock, f"{flow_run} (process {os.getpid()})\n")
        try:
            yield last[0] if last else None
        finally:
            _note(lock, "")


def refuse_if_busy(root: Path) -> None:
    """Look whether a flow run works here, before anything is started for another one.

    Raises:
        WorkspaceBusyError: one does.
    """
    with _locked(root):
        pass


@contextmanager
def _locked(root: Path) -> Iterator[IO[str]]:
    path = root / LOCK_FILE
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", encoding="utf-8") as lock:
        lock.seek(0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read().strip() or "another one"
            raise WorkspaceBusyError(
                f"{root}: a flow run works here already: {holder}. Wait for it or cancel it; two "
                "at once need two workspaces (`make repro VARIANT=...` makes one)"
            ) from None
        yield lock


def _note(lock: IO[str], text: str) -> None:
    lock.truncate(0)
    lock.write(text)
    lock.flush()
