"""The data sets of an execution: what its stages have read, with DVC's hashes, from dvc.lock."""

from collections.abc import Sequence
from pathlib import Path

from tasks.workspace.dvc_lockfile import read_lock

WITHDRAWN = "data/withdrawn/"
"""Not data, but what must not be in it."""


def data_sets(root: Path, rounds: Sequence[str]) -> list[dict[str, str]]:
    """What stages wrote below data/ and others read, and the files that `prepare` was given.

    Args:
        root: the workspace.
        rounds: those of the execution; dvc.lock may have more, of an earlier one.

    Returns:
        `path`, `digest` and, as `context`, who read it: `reward`, `3 stages` (MLflow's page has
        little room).
    """
    lock = {
        stage: locked
        for stage, locked in read_lock(root).items()
        if "@" not in stage or stage.partition("@")[2] in rounds
    }
    written = {path for locked in lock.values() for path in locked.outs}
    readers: dict[tuple[str, str], dict[str, None]] = {}
    for stage, locked in lock.items():
        name = stage.partition("@")[0]
        for path, digest in locked.deps.items():
            given = name == "prepare" and not path.endswith(".py")
            if path.startswith(WITHDRAWN):
                continue
            if given or (path in written and path.startswith("data/")):
                readers.setdefault((path, digest), {})[name] = None
    return [
        {
            "path": path,
            "digest": digest,
            "context": next(iter(names)) if len(names) == 1 else f"{len(names)} stages",
        }
        for (path, digest), names in sorted(readers.items())
    ]
