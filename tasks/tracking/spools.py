"""The spools and executions of a workspace, and the spool behind an entry of `dvc.lock`."""

import json
from pathlib import Path
from typing import Any

from tasks.params.loading import flatten
from tasks.tracking.spool import EXECUTIONS_FOLDER, SPOOL_FOLDER, read_finish
from tasks.workspace.dvc_lockfile import LockedStage
from tasks.workspace.files import home


def spools(root: Path, stage: str = "*") -> list[Path]:
    """The spool folders below `root`, of one stage or of all, oldest first."""
    starts = (home(root) / SPOOL_FOLDER).glob(f"{stage}/*/start.json")
    return [path.parent for path in sorted(starts, key=lambda p: (p.stat().st_mtime_ns, p))]


def executions(root: Path) -> list[Path]:
    """The folders of executions that have come to something."""
    folder = home(root) / EXECUTIONS_FOLDER
    records = [*folder.glob("*/rounds.json"), *folder.glob("*/end.json")]
    return sorted({record.parent for record in records})


def run_behind(root: Path, stage: str, locked: LockedStage) -> Path | None:
    """The spool of the run that made what `dvc.lock` names for a stage, if it is here."""
    for folder in reversed(spools(root, stage)):
        finish = read_finish(folder)
        if finish is None or finish["status"] != "FINISHED":
            continue
        if hashes := finish.get("hashes"):
            found = all(hashes.get(path) == digest for path, digest in locked.outs.items())
        else:
            found = _read_the_same(folder, locked)
        if found:
            return folder
    return None


def _read_the_same(folder: Path, locked: LockedStage) -> bool:
    """Whether a run of an earlier version, which noted no hashes, had these inputs and params."""
    start: dict[str, Any] = json.loads((folder / "start.json").read_text("utf-8"))
    known, params = start["inputs"], start["params"]
    return all(locked.deps.get(path, digest) == digest for path, digest in known.items()) and all(
        value == params.get(key, value)
        for key, value in flatten(locked.params).items()
        if isinstance(value, int | float | str)
    )
