"""DVC's own lock file, `.dvc/tmp/rwlock`, after a process died without releasing its locks.

DVC drops entries of processes that no longer exist. It does not recognise a reused process number
or a zombie, and a half-written file blocks it permanently.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.workspace.held import take

RWLOCK = Path(".dvc") / "tmp" / "rwlock"
_NAMES = (b"/dvc", b"/quick_dvc.py")


def clear_stale(root: Path, *, remove: bool = True) -> list[str]:
    """Remove what dead processes left in DVC's lock file; returns one line per problem.

    Does nothing while a DVC command is running in `root`: its locks are valid.

    Args:
        root: the workspace.
        remove: False only reports.
    """
    path = root / RWLOCK
    if not path.exists() or dvc_processes(root):
        return []
    with _guarded(path) as mine:
        if not mine:
            return []
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            held = [*_entries(content.get("read", {})), *_entries(content.get("write", {}))]
        except (ValueError, AttributeError, TypeError, KeyError):
            problem = f"{path}: damaged, and no DVC command is running here"
        else:
            if not held:
                return []
            names = ", ".join(sorted({f"{cmd} (process {pid})" for pid, cmd in held}))
            problem = f"{path}: left behind by {names}"
        if not remove:
            return [f"{problem} (by hand: rm {path})"]
        path.unlink()
    return [problem]


def dvc_processes(root: Path) -> list[int]:
    """Processes of `dvc` commands that are running in `root`, excluding zombies."""
    return [pid for pid, _ in _dvc_commands(root)]


def repro_processes(root: Path) -> list[int]:
    """Those of them that run stages: `dvc repro` and `dvc exp run`."""
    return [
        pid
        for pid, words in _dvc_commands(root)
        if b"repro" in words or {b"exp", b"run"} <= set(words)
    ]


def _dvc_commands(root: Path) -> Iterator[tuple[int, list[bytes]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            here = (folder / "cwd").readlink() == root.resolve()
        except OSError:  # It ended meanwhile, or belongs to somebody else.
            continue
        if here and any(word == b"dvc" or word.endswith(_NAMES) for word in words[:3]):
            yield int(folder.name), words


def _entries(paths: dict[str, Any]) -> Iterator[tuple[int, str]]:
    for holders in paths.values():
        for holder in holders if isinstance(holders, list) else [holders]:
            if holder:
                yield int(holder["pid"]), str(holder["cmd"])


@contextmanager
def _guarded(path: Path) -> Iterator[bool]:
    """DVC's guard around changes of the file; False where another process holds it."""
    if (guard := take(path.with_name("rwlock.lock"))) is None:
        yield False
        return
    with guard:
        yield True
