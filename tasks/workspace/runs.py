"""The workspace of a run: a git worktree of a revision, on a branch of the run's own.

`.work/runs/NAME` is on the branch `runs/NAME`. What a run has done is committed there: `dvc.lock`,
params.yaml as it was used, and `metrics/`. The checkout that the run comes from is not touched: it
may be edited, and other runs may work, meanwhile. A run whose name exists is continued. What was
withdrawn in the checkout is so in every run from its next start on, whatever revision it is of.
"""

import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tasks.params.loading import ParamsError
from tasks.workspace.choices import Choices, choose
from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.dvc_lockfile import only
from tasks.workspace.held import held
from tasks.workspace.withdrawn import bring_withdrawn, withdrawn_files
from tasks.workspace.worktrees import (
    RUNS_FOLDER,
    WORK,
    WorkspaceError,
    forget_lost,
    prune_worktrees,
    share_cache,
    worktree_git,
)

METRICS = "metrics"
TRIAL = Path(WORK) / "trial"
"""Where the choices of runs that have not started are tried."""
_SETTINGS = ("params.yaml", "dvc.yaml")
NAMES = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"
"""What a run may be called: it names a branch and a folder."""


def branch_of(name: str) -> str:
    """The branch of a run."""
    return f"runs/{name}"


@contextmanager
def run_workspace(
    root: Path, name: str, revision: str | None, choices: Choices, driver: Driver
) -> Iterator[tuple[Path, list[str]]]:
    """Make the workspace of a new run, or take up that of a known one, and hold it.

    Its files of tombstones have those of the checkout afterwards, committed there or not.

    Yields its path, and the ids of flow runs that died in it.

    Args:
        root: the checkout, of which only commits, and what was withdrawn, are taken.
        name: of the run.
        revision: what a new one starts from; None: the commit that is checked out. A known one
            must have started there.
        choices: go into the workspace's params.yaml.
        driver: who works in it.

    Raises:
        WorkspaceError: not a name, no such revision, one whose stages cannot leave out what was
            withdrawn, or git refuses.
        ParamsError: the choices or what the params name are wrong. A new run leaves nothing behind.
        WorkspaceBusyError: the run is running.
    """
    _require_name(name)
    workspace = root / RUNS_FOLDER / name
    workspace.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # Git has one list of worktrees, and two runs of one name must not meet in the middle.
        with held(workspace.parent / ".lock"):
            new = _check_out(root, workspace, revision)
            died = stack.enter_context(sole_use(workspace, driver))
            _remove_locks(workspace)
            try:
                share_cache(root, workspace)
                bring_withdrawn(root, workspace)
                choose(root, workspace, choices)
            except (ParamsError, WorkspaceError):
                if new:
                    remove_run(root, name)
                raise
        yield workspace, died


def try_choices(root: Path, name: str, revision: str | None, choices: Choices) -> None:
    """Find what `run_workspace` would say of the choices for a run, without making or changing it.

    They go into a worktree that is removed again, of the commit that a new run would start from. Of
    a known run they go over its params.yaml as it is now.

    Args:
        root: the checkout.
        name: of the run.
        revision: what a new one would start from; None: the commit that is checked out.
        choices: for its params.yaml.

    Raises:
        WorkspaceError, ParamsError: as `run_workspace`.
    """
    _require_name(name)
    workspace, trial = root / RUNS_FOLDER / name, root / TRIAL
    workspace.parent.mkdir(parents=True, exist_ok=True)
    with held(workspace.parent / ".lock"):
        start = _start(root, name, revision)
        # Nobody else has it now: one that was killed has left it.
        shutil.rmtree(trial, ignore_errors=True)
        prune_worktrees(root)
        # Forced twice: a git that was killed while it made it has left it locked, too.
        worktree_git(root, "worktree", "add", "-ff", "--quiet", "--detach", str(trial), start)
        try:
            for settings in _SETTINGS:
                if (workspace / settings).is_file():
                    shutil.copy(workspace / settings, trial / settings)
            bring_withdrawn(root, trial)
            choose(root, trial, choices)
        finally:
            worktree_git(root, "worktree", "remove", "--force", str(trial))


def is_known(root: Path, name: str) -> bool:
    """Whether there is a run of this name, which another order would continue."""
    return bool(worktree_git(root, "branch", "--list", branch_of(name)))


def started_from(root: Path, name: str) -> str:
    """The commit that a known run started from: the one before the first of its own."""
    branch = f"refs/heads/{branch_of(name)}"
    listed = worktree_git(root, "log", "--first-parent", "--format=%H %s", branch).splitlines()
    own = [place for place, line in enumerate(listed) if line.endswith(f" of the run {name}")]
    return listed[own[-1] + 1 if own else 0].partition(" ")[0]


def commit_of(root: Path, revision: str) -> str:
    """The id of the commit that a branch, tag or commit of this repository is now.

    Raises:
        WorkspaceError: there is none.
    """
    try:
        return worktree_git(
            root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except WorkspaceError:
        raise WorkspaceError(
            f"revision: no branch, tag or commit {revision!r} here (`git fetch` gets those of "
            "others)"
        ) from None


def remove_run(root: Path, name: str) -> None:
    """Remove a run's workspace and its branch."""
    worktree_git(root, "worktree", "remove", "--force", str(root / RUNS_FOLDER / name))
    worktree_git(root, "branch", "--quiet", "-D", branch_of(name))


def commit_run(
    workspace: Path,
    subject: str,
    *,
    files: Mapping[str, str],
    stages: Collection[str] | None,
    trailers: Mapping[str, str],
) -> str:
    """Commit what the run has done so far on its branch; the commit, new or the last one.

    Only the index changes, the files stay as they are: DVC still needs the entries of dvc.lock
    that are not true of this run yet.

    Args:
        workspace: of the run.
        subject: first line of the message.
        files: name below `metrics/` -> text; replace what is there. None of them: it stays.
        stages: those whose entries of dvc.lock are true of this run; None: leave it as it is.
        trailers: name -> value; empty ones are left out.
    """
    withdrawn = map(str, withdrawn_files(workspace))
    # Forced: a revision may ignore what a clone of the run has to leave out.
    worktree_git(workspace, "add", "--force", "--", *_SETTINGS, *withdrawn)
    if stages is not None:
        lock = workspace / "dvc.lock"
        text = only(lock.read_text(encoding="utf-8"), stages) if lock.exists() else ""
        _put(workspace, "dvc.lock", text)
    if files:
        worktree_git(
            workspace, "rm", "-r", "--force", "--quiet", "--cached", "--ignore-unmatch", METRICS
        )
    for name, text in files.items():
        _put(workspace, f"{METRICS}/{name}", text)
    if worktree_git(workspace, "diff", "--cached", "--name-only"):
        lines = [f"{key}: {value}" for key, value in trailers.items() if value]
        message = "\n".join([subject, "", *lines, ""])
        worktree_git(workspace, "commit", "--quiet", "--no-verify", "--file=-", stdin=message)
    return worktree_git(workspace, "rev-parse", "HEAD")


def is_committed(workspace: Path, subject: str, stages: Collection[str]) -> bool:
    """Whether the run's last commit of this subject has these params and entries of dvc.lock.

    A run that is ordered again and finds its rounds done has nothing to say of them.
    """
    line = subject.replace(".", r"\.")
    found = worktree_git(workspace, "log", "-1", "--format=%H", f"--grep=^{line}$")
    if not found or worktree_git(workspace, "diff", "--name-only", found, "--", *_SETTINGS):
        return False
    lock = workspace / "dvc.lock"
    text = only(lock.read_text(encoding="utf-8"), stages) if lock.exists() else ""
    return worktree_git(workspace, "show", f"{found}:dvc.lock").strip() == text.strip()


def tag_run(workspace: Path, name: str, message: str) -> str:
    """Tag the run's last commit as `done/NAME`, a later one as `done/NAME.2`; the tag."""
    at_head = worktree_git(workspace, "tag", "--points-at", "HEAD", "--list", f"done/{name}*")
    # Not those of a run whose name begins with this one's.
    if ours := re.findall(rf"^done/{re.escape(name)}(?:\.\d+)?$", at_head, re.MULTILINE):
        return str(ours[-1])
    tag, number = f"done/{name}", 1
    while worktree_git(workspace, "tag", "--list", tag):
        number += 1
        tag = f"done/{name}.{number}"
    worktree_git(workspace, "tag", "--annotate", "--message", message, tag)
    return tag


def _require_name(name: str) -> None:
    if not re.fullmatch(NAMES, name) or name.endswith(".lock"):
        raise WorkspaceError(
            f"name: {name!r}; expected letters, digits, `-`, `_` and single dots: it names a branch"
        )


def _check_out(root: Path, workspace: Path, revision: str | None) -> bool:
    """Make the worktree where there is none; whether its branch is new."""
    branch = branch_of(workspace.name)
    new, start = not is_known(root, workspace.name), _start(root, workspace.name, revision)
    forget_lost(root, workspace)
    if new:
        worktree_git(root, "worktree", "add", "--quiet", "-b", branch, str(workspace), start)
    elif not (workspace / ".git").exists():
        worktree_git(root, "worktree", "add", "--quiet", str(workspace), branch)
    return new


def _remove_locks(workspace: Path) -> None:
    """Remove what a git that was killed during a commit has left: here nobody else commits."""
    for locked in ("index", "HEAD", f"refs/heads/{branch_of(workspace.name)}"):
        lock = ("rev-parse", "--path-format=absolute", "--git-path", f"{locked}.lock")
        Path(worktree_git(workspace, *lock)).unlink(missing_ok=True)


def _start(root: Path, name: str, revision: str | None) -> str:
    """The commit that a run starts from, of a known one the last of its branch."""
    asked = commit_of(root, revision) if revision else None
    if not is_known(root, name):
        return asked or commit_of(root, "HEAD")
    branch = branch_of(name)
    if asked and asked != worktree_git(root, "merge-base", asked, branch):
        raise WorkspaceError(
            f"name: the run {name} exists and did not start from {revision}; choose "
            "another name, or leave the revision empty to continue that run"
        )
    return commit_of(root, f"refs/heads/{branch}")


def _put(workspace: Path, path: str, text: str) -> None:
    """Put a file into the index, or take it out where the text is empty."""
    if not text:
        worktree_git(workspace, "update-index", "--force-remove", path)
        return
    blob = worktree_git(workspace, "hash-object", "-w", "--stdin", stdin=text)
    worktree_git(workspace, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
