"""Workspaces of runs that have ended, if all that is in them is kept elsewhere; why others stay.

A run has ended where its tag `done/NAME` is at the tip of its branch and it waits for nobody. Its
branch and tag, DVC's cache and MLflow keep what it made; a run that is ordered again under its name
gets its workspace back from them. Anything else in the workspace keeps it.
"""

import re
from collections.abc import Iterator, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path

from tasks.pruning.leftovers import Leftover, PruneError, labels_in
from tasks.pruning.undecided import undecided
from tasks.tracing.records import LOCK, RecordError, runs_of
from tasks.tracking.shipping import execution_has_news, has_news
from tasks.tracking.spool import EXECUTIONS_FOLDER
from tasks.tracking.spools import spools
from tasks.workspace.driver_lock import died_in, refuse_if_busy
from tasks.workspace.dvc_cache import cache_folder, is_cached, md5
from tasks.workspace.files import home, read_json
from tasks.workspace.git import GitError, git
from tasks.workspace.runs import branch_of
from tasks.workspace.work_folder import checkpoint_folders
from tasks.workspace.worktrees import RUNS_FOLDER, prune_worktrees

KIND = "workspaces of runs that have ended"
WRITTEN_ANEW = ("reports/summary.json", "reports/run.html", ".dvc/config.local")
"""Written whenever a run works there; MLflow has what the first two say."""
NOBODYS = re.compile(
    r"(^|/)(__pycache__|\.ruff_cache|\.mypy_cache|\.pytest_cache)/|^\.dvc/tmp/|(^|/)\.gitignore$"
)


def finished(root: Path) -> tuple[list[Leftover], dict[str, str]]:
    """The workspaces that can go, and name -> why it stays of the others."""
    gone, staying = [], {}
    for workspace in run_workspaces(root):
        if why := next(reasons_to_stay(root, workspace), ""):
            staying[workspace.name] = why
        else:
            gone.append(Leftover(KIND, workspace.name, (workspace,)))
    return gone, staying


def run_workspaces(root: Path) -> list[Path]:
    """Those that there are."""
    return [path.parent for path in sorted((root / RUNS_FOLDER).glob("*/.git"))]


def remove(root: Path, ended: Sequence[Leftover]) -> None:
    """Remove workspaces, unless a run has started in one of them since they were looked at.

    Call it where none begins now (`tasks.workspace.worktrees.none_begins`).

    Raises:
        WorkspaceBusyError: it has; those before it are gone.
        PruneError: it has, and has ended already.
    """
    if not ended:
        return
    for one in ended:
        (workspace,) = one.paths
        refuse_if_busy(workspace)
        if why := next(reasons_to_stay(root, workspace), ""):
            raise PruneError(f"{one.name}: {why} now; nothing else was removed")
        one.remove()
    prune_worktrees(root)


def reasons_to_stay(root: Path, workspace: Path) -> Iterator[str]:
    """What keeps the workspace of a run; nothing where all of it is kept elsewhere."""
    try:
        yield from _not_ended(workspace)
        yield from _not_sent(workspace)
        for key in undecided(root, workspace):
            yield f"people are asked about its policy of round {key}, and have not decided yet"
        yield from _not_committed(workspace)
        yield from _not_cached(root, workspace)
    except (GitError, PruneError, RecordError, ConfigError, ValueError, OSError) as error:
        yield f"it cannot be read: {error}"


def _not_ended(workspace: Path) -> Iterator[str]:
    name = workspace.name
    note = read_json(workspace / ".work/run.json")
    if note is None:
        yield "it has not begun"
    elif note["waits"]:
        yield "it waits for people"
    if died_in(workspace):
        yield "a flow run died there, and Prefect is still to be told"
    if git(workspace, "rev-parse", "--abbrev-ref", "HEAD") != branch_of(name):
        yield f"the branch {branch_of(name)} is not checked out there"
    tags = git(workspace, "tag", "--points-at", "HEAD", "--list", f"done/{name}*").split()
    if not any(re.fullmatch(rf"done/{re.escape(name)}(\.\d+)?", tag) for tag in tags):
        yield f"it has not ended: no tag done/{name} is at the tip of its branch"
    for work in sorted((workspace / ".work").glob("*/")):
        outcome = read_json(work / "outcome.json") or {}
        if checkpoint_folders(work) and outcome.get("status") != "done":
            yield f"{work.name} was interrupted, and would resume from its checkpoint"


def _not_sent(workspace: Path) -> Iterator[str]:
    executions = (home(workspace) / EXECUTIONS_FOLDER).glob("*/")
    if any(map(has_news, spools(workspace))) or any(map(execution_has_news, executions)):
        yield "MLflow does not have all of it yet"
    names = [name for name in (".dvc/config", ".dvc/config.local") if (workspace / name).exists()]
    config = ConfigParser(interpolation=None)
    config.read([workspace / name for name in names], encoding="utf-8")
    if config.get("core", "remote", fallback="") and git(workspace, "remote"):
        pushed = f"refs/remotes/*/{branch_of(workspace.name)}"
        tips = git(workspace, "for-each-ref", "--format=%(objectname)", pushed).split()
        if git(workspace, "rev-parse", "HEAD") not in tips:
            yield "its end has not been pushed"
    if labels := labels_in(workspace):
        yield f"it has a labelling store of its own, {labels}"


def _not_committed(workspace: Path) -> Iterator[str]:
    """Files that git would track and no commit of the branch has, and entries of dvc.lock."""
    status = git(workspace, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    for line in filter(None, status.split("\0")):
        path = workspace / line.split(maxsplit=1)[1]
        name = path.relative_to(workspace).as_posix()
        if path.is_symlink() or not path.exists():
            continue
        if name == LOCK:
            yield from _not_recorded(workspace)
        elif not _is_in_history(workspace, name):
            yield f"{name} is in no commit of its branch"


def _not_recorded(workspace: Path) -> Iterator[str]:
    commits = git(workspace, "log", "--format=%H", "HEAD", "--", LOCK).split()
    known = [ran for commit in commits for ran in runs_of(workspace, commit)]
    for ran in runs_of(workspace, None):
        if ran not in known:
            yield f"no commit of its branch has what dvc.lock says of {ran.stage}"


def _is_in_history(workspace: Path, name: str) -> bool:
    blob = git(workspace, "hash-object", "--", name)
    return bool(git(workspace, "log", "-1", "--format=%H", f"--find-object={blob}", "HEAD"))


def _not_cached(root: Path, workspace: Path) -> Iterator[str]:
    """Outputs that the cache does not have, and ignored files that are no outputs."""
    cache = cache_folder(root)
    for ran in runs_of(workspace, "HEAD"):
        for path, digest in ran.outs.items():
            if not is_cached(cache, digest) and not _is_tracked(workspace, path):
                yield f"{path} is not in DVC's cache"
    ignored = git(
        workspace, "ls-files", "-z", "--others", "--ignored", "--exclude-standard"
    ).split("\0")  # fmt: skip
    for name in filter(None, ignored):
        file = workspace / name
        if name.startswith(".work/") or name in WRITTEN_ANEW or NOBODYS.search(name):
            continue
        if file.is_symlink() and not file.resolve().is_relative_to(workspace.resolve()):
            continue  # What it leads to stays.
        if file.is_file() and not is_cached(cache, md5(file)):
            yield f"{name} is in no commit and not in DVC's cache"


def _is_tracked(workspace: Path, path: str) -> bool:
    return bool(git(workspace, "ls-tree", "-r", "--name-only", "HEAD", "--", path))
