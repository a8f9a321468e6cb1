"""The one commit that runs which are ordered together start from, however long they wait.

A run takes its commit when it starts, hours after the first of a sweep or of several seeds. Until
then a branch may have moved, or something else be checked out: runs of different code would be
compared as if they differed in their parameters alone. For the same reason a run that is added to
known ones starts where they did.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

from prefect import runtime

from tasks.workspace.files import read_json, write_json
from tasks.workspace.runs import commit_of, is_known, started_from

STARTS = Path(".work") / "starts"
"""A file for each flow run that has ordered several, for when it is tried again."""


def common_start(root: Path, names: Collection[str], revision: str) -> dict[str, str]:
    """What each of these runs is to start from: the same commit for all that are new.

    Args:
        root: the checkout.
        names: of the runs.
        revision: as entered, which known runs keep. Empty: the commit that the first known of these
            runs started from; where none is known, the commit that is checked out.

    Raises:
        WorkspaceError: no such revision.
        DamagedNoteError: the note of an earlier try cannot be read.
    """
    new = {name: not is_known(root, name) for name in names}
    commit = _once(root, revision or known_start(root, names)) if any(new.values()) else ""
    return {name: commit if is_new else revision for name, is_new in new.items()}


def known_start(root: Path, names: Iterable[str]) -> str:
    """The commit that the first known of these runs started from; empty where all are new."""
    return next((started_from(root, name) for name in names if is_known(root, name)), "")


def _once(root: Path, revision: str) -> str:
    """The commit that the revision was when this flow run asked first."""
    note = root / STARTS / f"{runtime.flow_run.id}.json"
    if known := read_json(note):
        return str(known["commit"])
    commit = commit_of(root, revision or "HEAD")
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, {"commit": commit})
    return commit
