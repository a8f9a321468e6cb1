"""Explains errors of the machine: a full disk, no memory, a folder that cannot be written."""

import errno
import functools
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from tasks.running.outcome import Status
from tasks.workspace.dvc_cache import cache_folder, is_cached
from tasks.workspace.dvc_lockfile import read_lock
from tasks.workspace.work_folder import newest_checkpoint
from tasks.workspace.worktrees import checkout_of

P = ParamSpec("P")
FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
FULL_WORDS = ("No space left on device", "Disk quota exceeded", "disk is full")
MEMORY_WORDS = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "STATUS_ALLOC_FAILED",
)


def explain(error: BaseException, folder: Path) -> str | None:
    """One line for people, or None if the machine is not the cause.

    Args:
        error: what ended the stage.
        folder: where the stage writes, for errors that name no file.
    """
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL or any(words in text for words in FULL_WORDS):
        place = _existing(_place(error, folder))
        usage = shutil.disk_usage(place)
        return (
            f"{_place(error, folder)}: the disk is full ({_megabytes(usage.free)} free of "
            f"{_megabytes(usage.total)} in {place}). Earlier outputs and checkpoints are "
            "unchanged; free some space and run it again"
        )
    if number in FORBIDDEN:
        return f"{_place(error, folder)}: cannot be written or read: {error.strerror}"  # type: ignore[attr-defined]
    if isinstance(error, MemoryError) or any(words in text for words in MEMORY_WORDS):
        return (
            f"out of memory ({type(error).__name__}: {text.splitlines()[0] if text else 'no text'})"
            ". Run it again to resume from the newest checkpoint; to use less, lower "
            "`micro_batch_size` (it changes no result but rounding) or the number of tokens, or "
            "set `recompute_layers`; where not even weights, gradients and moments fit, train with "
            "`lora`, or divide them among `run.processes` with `run.sharded`"
        )
    return None


def in_one_line(main: Callable[P, int]) -> Callable[P, int]:
    """A command that says in one line what the machine keeps it from (exit code 1), or a Ctrl-C."""

    @functools.wraps(main)
    def said(*arguments: P.args, **named: P.kwargs) -> int:
        try:
            return main(*arguments, **named)
        except OSError as error:
            if (trouble := explain(error, Path.cwd())) is None:
                raise
            sys.stderr.write(f"{trouble}\n")
            return 1
        except KeyboardInterrupt:
            sys.stderr.write("Interrupted.\n")
            return 128 + signal.SIGINT

    return said


def advice(root: Path, stage: str, status: Status) -> str:
    """What is kept of a stage that failed, as a suffix to its message."""
    words = ""
    if (
        status in ("stopped", "bad_input")
        and (kept := newest_checkpoint(root / ".work" / stage)) is not None
    ):
        words += f" (its last good checkpoint is kept: {kept.relative_to(root)})"
    # What the dvc.lock of a variant or an ordered run names may be the main line's.
    if status in ("bad_input", "stopped", "blocked", "failed") and checkout_of(root) == root:
        locked = read_lock(root).get(stage)
        cache = cache_folder(root)
        missing = [
            path
            for path, digest in (locked.outs if locked is not None else {}).items()
            if not (root / path).exists() and is_cached(cache, digest)
        ]
        if missing:  # DVC removed them before it started the stage.
            words += f". To restore its last good outputs: dvc checkout {' '.join(missing)}"
    return words


def _place(error: BaseException, folder: Path) -> Path:
    named = error.filename if isinstance(error, OSError) else None
    return Path(named) if isinstance(named, str) else folder


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
