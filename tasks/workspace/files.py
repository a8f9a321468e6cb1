"""Small files that a reader never sees half-written, paths below the repository, and its commit."""

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from rlhf.manifests import flush
from tasks.workspace.git import surroundings


class DamagedNoteError(ValueError):
    """A file of `write_json` that holds no object of JSON; the message names it."""


def git_commit(root: Path) -> str:
    """The commit that is checked out, empty outside of git or before the first commit."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "HEAD"]
    return _said(command)


def git_branch(root: Path) -> str:
    """The branch that is checked out, empty outside of git and where a commit is checked out."""
    command = ["git", "-C", str(root), "symbolic-ref", "--short", "--quiet", "HEAD"]
    return _said(command)


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings())
    return done.stdout.strip()


def outside_repository(root: Path) -> str | None:
    """What to say of a folder in which no pipeline is defined; None where one is."""
    if (root / "dvc.yaml").exists():
        return None
    return f"{root}: no dvc.yaml here; run this from the repository root"


def home(root: Path) -> Path:
    """The checkout that keeps what runs leave: `root`, or that of `dvc exp run --temp`.

    DVC runs such an experiment in a copy below `.dvc/tmp/exps` and removes it afterwards.
    """
    absolute = root.absolute()
    for folder in absolute.parents:
        if absolute.is_relative_to(folder / ".dvc" / "tmp" / "exps"):
            return folder
    return root


def relative_to(path: Path, root: Path) -> str:
    """`path` below `root` with forward slashes, or absolute where it lies elsewhere."""
    absolute, base = path.absolute(), root.absolute()
    return (absolute.relative_to(base) if absolute.is_relative_to(base) else absolute).as_posix()


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as JSON: a reader sees the old file or the new one.

    So does one after a loss of power: some file systems would else have an empty file then.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        flush(draft)
        draft.replace(path)
    except OSError:  # Full or read-only: nobody would remove what is there of it.
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object that `write_json` wrote to `path`, None where it has not.

    Raises:
        DamagedNoteError: something else has changed it.
    """
    if not path.exists():
        return None
    content = path.read_bytes()
    try:
        record = json.loads(content)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise DamagedNoteError(
            f"{path}: damaged: its {len(content)} bytes are no object of JSON (see make doctor)"
        )
    return record


def now_ms() -> int:
    """Milliseconds since 1970, MLflow's unit of time."""
    return time.time_ns() // 1_000_000
