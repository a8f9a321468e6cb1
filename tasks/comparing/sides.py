"""One side of a comparison: what a commit, a variant or a run had, made and measured."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.comparing.own_runs import own_runs
from tasks.params.loading import flatten
from tasks.tracing.contents import FOLDER, ContentError, Contents
from tasks.tracing.records import Ran, Records
from tasks.tracking.sent import DEFAULT_STORE
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.workspace.files import git_commit
from tasks.workspace.git import GitError, git
from tasks.workspace.runs import branch_of
from tasks.workspace.withdrawn import models_withdrawn, outputs_withdrawn
from tasks.workspace.worktrees import RUNS_FOLDER, VARIANTS_FOLDER, workspaces

HERE = "."
MEASURED = ("results/",)


class SideError(Exception):
    """Nothing of this name can be compared; the message says what can be."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one side."""

    name: str
    kind: str
    """commit, variant, ordered run, run (of MLflow), or what is checked out."""
    commit: str
    root: Path
    """Of the workspace whose cache has its files."""
    params: Mapping[str, str]
    """Dotted key -> value."""
    complete: bool
    """Whether defaults are among the params, as MLflow has them."""
    runs: tuple[Ran, ...]
    others: tuple[str, ...] = ()
    """Stages in its dvc.lock that ran with other params, or with what such stages made."""


def side(root: Path, name: str) -> Side:
    """The side of this name: `.`, a variant, an ordered run, a commit, or a run in MLflow.

    Raises:
        SideError: there is none.
        RecordError: its dvc.lock cannot be read.
    """
    if name == HERE:
        return _workspace(root, name, "checked out")
    known = workspaces(root)
    for folder, kind in ((VARIANTS_FOLDER, "variant"), (RUNS_FOLDER, "ordered run")):
        if (root / folder / name) in known:
            return _workspace(root / folder / name, name, kind)
    # `tasks.prune` removes the workspace of a run that has ended; its branch stays.
    for revision, kind in ((name, "commit"), (branch_of(name), "ordered run")):
        if (commit := _commit(root, revision)) is not None:
            return _recorded(Records(root, Contents(root), commit), root, name, kind, commit)
    if (found := _run(root, name)) is not None:
        return found
    folders = (root / VARIANTS_FOLDER, root / RUNS_FOLDER)
    have_run = ", ".join(path.name for path in known if path.parent in folders) or "none has run"
    raise SideError(
        f"{name}: no commit, no run in MLflow (id, name or execution), and no variant or ordered "
        f"run ({have_run})"
    )


def measured(one: Side, folder: Path) -> list[str]:
    """Copy what the side measured into `folder`, as it was below the root; what is not here.

    Only tables and metrics, no models.
    """
    contents = Contents(one.root)
    missing = []
    for ran in one.runs:
        for path, digest in ran.outs.items():
            if not path.startswith(MEASURED):
                continue
            try:
                _copy(contents, path, digest, folder)
            except ContentError:
                missing.append(path)
    return missing


def withdrawn(root: Path, one: Side) -> list[str]:
    """What the side read or made that had something that `tasks.forget` has withdrawn since.

    Raises:
        WithdrawalsError: a line of the log is damaged.
    """
    gone = outputs_withdrawn(root) | models_withdrawn(root)
    named = [item for ran in one.runs for item in (*ran.deps.items(), *ran.outs.items())]
    return list(dict.fromkeys(path for path, digest in named if digest in gone))


def _copy(contents: Contents, path: str, digest: str, folder: Path) -> None:
    files = {path: digest}
    if digest.endswith(FOLDER):
        files = {f"{path}/{name}": md5 for name, md5 in contents.files(path, digest).items()}
    for name, md5 in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(contents.file(name, md5), folder / name)


def _workspace(folder: Path, name: str, kind: str) -> Side:
    return _recorded(Records(folder, Contents(folder)), folder, name, kind, git_commit(folder))


def _recorded(records: Records, folder: Path, name: str, kind: str, commit: str) -> Side:
    params = records.params()
    runs, others = own_runs(records.now, params)
    return Side(name, kind, commit, folder, _flat(params), False, runs, others)


def _commit(root: Path, name: str) -> str | None:
    try:
        return git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitError:
        return None


def _run(root: Path, name: str) -> Side | None:
    if not os.environ.get("MLFLOW_TRACKING_URI") and not (root / DEFAULT_STORE).exists():
        return None
    quiet_mlflow()
    # Imported here: they bring MLflow, which takes seconds that commits and variants save.
    from tasks.comparing.mlflow_runs import find_run  # noqa: PLC0415
    from tasks.tracking.send import TrackingError, named_errors  # noqa: PLC0415

    try:
        with named_errors():
            found = find_run(tracking_uri(root), name)
    except TrackingError as error:
        raise SideError(
            f"{name}: no commit, variant or ordered run, and MLflow cannot say whether it is one "
            f"of its runs ({error})"
        ) from None
    if found is None:
        return None
    return Side(name, "run", found.commit, root, found.params, True, found.runs)


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in flatten(values).items()}
