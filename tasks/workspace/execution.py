"""The execution that stages belong to: its id, and what is remembered of it between calls.

Each call of the driver begins a new execution, unless the last one did not finish (killed,
blocked, waiting for people) and nothing that defines it has changed: then that one continues, and
the interrupted stage resumes its MLflow run.
"""

import hashlib
import os
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tasks.workspace.files import git_commit, home, read_json, write_json
from tasks.workspace.held import held

EXECUTION_FILE = Path(".work") / "execution.json"
CLONE_FILE = Path(".work") / "clone"


@dataclass(slots=True, kw_only=True)
class Execution:
    """One run of the pipeline, in as many calls as it takes."""

    id: str
    """Sorts by time: `20260314-091500-3fa2c1`, with a variant's name at the end."""
    key: str
    """Digest of the commit and params.yaml that define it."""
    unfinished: bool = True
    """The pipeline has not reached its end yet."""
    seconds: float = 0.0
    """Wall-clock seconds of all calls so far."""
    lock: str = ""
    """`lock_digest` as its last call ended; empty in files of an earlier version."""


def begin_execution(root: Path, variant: str | None = None) -> Execution:
    """The execution to continue, or a new one; recorded in `.work/execution.json`."""
    key = execution_key(root)
    last = last_execution(root)
    if last is not None and last.unfinished and last.key == key:
        return last
    execution = Execution(id=_new_id(variant), key=key)
    save_execution(root, execution)
    return execution


def last_execution(root: Path) -> Execution | None:
    """The execution of the last call in this workspace.

    Raises:
        DamagedNoteError: the file is damaged.
    """
    found = read_json(root / EXECUTION_FILE)
    return None if found is None else Execution(**found)


def save_execution(root: Path, execution: Execution) -> None:
    """Note it for the next call."""
    path = root / EXECUTION_FILE
    path.parent.mkdir(exist_ok=True)
    write_json(path, asdict(execution))


def is_of_last_execution(root: Path) -> bool:
    """Whether `dvc.lock` is as the last execution left it, which came to its end.

    A checkout or pull may have brought another. Where an earlier version did not note how the
    execution left it, it is taken to be the same.
    """
    last = last_execution(root)
    if last is None or last.unfinished:  # One that was killed as its last stage had ended.
        return False
    return last.lock in ("", lock_digest(root))


def lock_digest(root: Path) -> str:
    """Digest of `dvc.lock` (16 hex digits); of nothing where there is none."""
    path = root / "dvc.lock"
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()[:16]


def _new_id(variant: str | None) -> str:
    made = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    return f"{made}-{variant}" if variant else made


def current_execution(root: Path) -> str:
    """The id of the execution that this stage belongs to: whoever started it has named it.

    A bare `dvc repro` does not: the same commit and params.yaml are one execution of a clone then.
    """
    own = os.environ.get("RLHF_EXECUTION")
    return own or f"dvc-{execution_key(root)[:12]}-{_clone(root)}"


def _clone(root: Path) -> str:
    """Six hex digits of this clone: those of colleagues may send to the same MLflow."""
    path = home(root) / CLONE_FILE
    path.parent.mkdir(exist_ok=True)
    # Several processes of a stage begin at once.
    with held(path), path.open("r+", encoding="ascii") as file:
        if not (known := file.read()):
            known = secrets.token_hex(3)
            file.write(known)
    return known


def execution_key(root: Path) -> str:
    """Digest of the commit and params.yaml, which define an execution (16 hex digits)."""
    digest = hashlib.sha256(git_commit(root).encode())
    digest.update((root / "params.yaml").read_bytes())
    return digest.hexdigest()[:16]
