"""Stages that another machine runs: order and answer are commits, and git alone carries them.

An order is a commit on top of the one that is checked out, with params.yaml, dvc.yaml, dvc.lock
(but for the stage's own entry) and the tombstones of data/withdrawn/ as they are. The same
workspace makes the same commit: who orders again finds the same branch,
`stages/STAGE-0123456789ab`, and the answer, if it has come meanwhile.
The answer is a commit on top of the order: the stage's entry of dvc.lock, the outputs that git
keeps, and what `.work/STAGE` says of its ending. Data travel by DVC's remote, before the commit
that names them. The answer has the tombstones of both, so that what was withdrawn on either machine
stays so.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.dvc_lockfile import with_entry, without_entry
from tasks.workspace.fresh_clone import uncommitted
from tasks.workspace.held import held
from tasks.workspace.withdrawn import WITHDRAWN, bring_withdrawn, withdrawn_files, withdrawn_in
from tasks.workspace.work_folder import BLOCKED, STOPPED
from tasks.workspace.worktrees import (
    STAGES_FOLDER,
    forget_lost,
    remote_git,
    share_cache,
    worktree_git,
)

DEFINITION = ("params.yaml", "dvc.yaml", "dvc.lock", *WITHDRAWN)
"""What an order takes as it is, committed or not."""
KEPT_BY_GIT = "metrics"
"""What the report writes for git and not for DVC's cache; a run commits it by itself."""
ENDING = "ending.json"
SUBJECT = "Order: "


class OrderError(Exception):
    """A stage that cannot be ordered elsewhere, or an answer that cannot be used."""


@dataclass(frozen=True, slots=True)
class Order:
    """A stage that is to run as a commit has it."""

    stage: str
    commit: str

    @property
    def branch(self) -> str:
        """Where the order lies, and the answer on top of it."""
        return f"stages/{self.stage}-{self.commit[:12]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """How a stage ended elsewhere."""

    how: str
    """As `flows.stages` names it: ran, cached, blocked, ..."""
    message: str
    commit: str = ""


def make_order(workspace: Path, stage: str) -> Order:
    """The order for a stage of a workspace, as it is now.

    Raises:
        OrderError: files are edited that git has; another machine gets commits.
    """
    edited = [
        path for path in uncommitted(workspace)
        if path not in DEFINITION and not path.startswith(f"{KEPT_BY_GIT}/")
    ]  # fmt: skip
    if edited:
        raise OrderError(
            f"another machine gets commits, and these edits are in none: {', '.join(edited)}; "
            "commit them first"
        )
    head = worktree_git(workspace, "rev-parse", "--verify", "HEAD")
    files = {
        name: (workspace / name).read_text(encoding="utf-8")
        for name in DEFINITION
        if (workspace / name).exists()
    }
    if "dvc.lock" in files:
        # What the stage made last time is no part of what it is made from.
        files["dvc.lock"] = without_entry(files["dvc.lock"], stage)
    return Order(stage, _commit_files(workspace, head, f"{SUBJECT}{stage}", files))


def send_order(workspace: Path, order: Order, remote: str) -> None:
    """Push an order, unless it, or its answer, is there already."""
    if not _tip(workspace, order, remote):
        _push(workspace, order, remote, order.commit, expected="")


def read_answer(workspace: Path, order: Order, remote: str) -> Answer | None:
    """What the other machine has answered; None where it has not yet.

    Raises:
        OrderError: what lies there is no answer to this order.
    """
    tip = _tip(workspace, order, remote)
    if tip in ("", order.commit):
        return None
    remote_git(workspace, "fetch", "--quiet", "--no-tags", remote, f"refs/heads/{order.branch}")
    if worktree_git(workspace, "show", "--no-patch", "--format=%P", tip) != order.commit:
        raise OrderError(f"{order.branch}: commit {tip[:12]} does not answer {order.commit[:12]}")
    record = json.loads(worktree_git(workspace, "show", f"{tip}:{_work(order.stage)}/{ENDING}"))
    return Answer(record["how"], record["message"], tip)


def adopt_notes(workspace: Path, order: Order, answer: Answer) -> None:
    """Write what `.work/STAGE` of the other machine says of the ending."""
    _restore(workspace, answer.commit, _work(order.stage))


def adopt_entry(workspace: Path, order: Order, answer: Answer) -> None:
    """Write the stage's entry of dvc.lock, what git keeps of its outputs, and its tombstones.

    Raises:
        OrderError: the answer has no entry.
    """
    path = workspace / "dvc.lock"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    theirs = worktree_git(workspace, "show", f"{answer.commit}:dvc.lock") + "\n"
    try:
        text = with_entry(before, order.stage, theirs)
    except KeyError:
        raise OrderError(f"{order.branch}: the answer has no entry of dvc.lock") from None
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    _restore(workspace, answer.commit, KEPT_BY_GIT, since=order.commit)
    with withdrawn_in(workspace, answer.commit) as there:
        bring_withdrawn(there, workspace)


def forget_order(workspace: Path, order: Order, remote: str) -> None:
    """Remove the branch of an order whose answer has been taken in."""
    remote_git(workspace, "push", "--quiet", remote, f":refs/heads/{order.branch}")


@contextmanager
def order_workspace(clone: Path, order: Order, driver: Driver) -> Iterator[Path]:
    """The workspace of an order, held: its files, and the checkpoints of an earlier attempt.

    HEAD is what it was where the stage was ordered, so that MLflow notes the same commit. What was
    withdrawn in this clone is so there, too.

    Raises:
        WorkspaceError: its stages cannot leave out what was withdrawn here.
        WorkspaceBusyError: another process of this clone works on the same order.
    """
    workspace = clone / STAGES_FOLDER / order.branch.partition("/")[2]
    with ExitStack() as stack:
        with held(clone / STAGES_FOLDER / ".lock"):
            forget_lost(clone, workspace)
            if not (workspace / ".git").exists():
                made = ("--force", "--detach", str(workspace), order.commit)
                worktree_git(clone, "worktree", "add", "--quiet", *made)
            stack.enter_context(sole_use(workspace, driver))
        worktree_git(workspace, "checkout", "--quiet", "--force", "--detach", order.commit)
        if _is_order(clone, order.commit):
            worktree_git(workspace, "reset", "--quiet", "--soft", f"{order.commit}^")
        share_cache(clone, workspace)
        bring_withdrawn(clone, workspace)
        yield workspace


def close_order(clone: Path, workspace: Path) -> None:
    """Remove the workspace of an order that has been answered."""
    with held(clone / STAGES_FOLDER / ".lock"):
        worktree_git(clone, "worktree", "remove", "--force", str(workspace))


def send_answer(workspace: Path, order: Order, answer: Answer, remote: str) -> str:
    """Commit what the stage has left and push it as the answer; the commit."""
    work = workspace / _work(order.stage)
    left = [
        *([work / "outcome.json"] if (work / "outcome.json").exists() else []),
        *(path for name in (BLOCKED, STOPPED) for path in sorted((work / name).rglob("*"))),
        *sorted((workspace / KEPT_BY_GIT).rglob("*")),
        *withdrawn_files(workspace),
        workspace / "dvc.lock",
    ]
    files = {
        path.relative_to(workspace).as_posix(): path.read_text(encoding="utf-8")
        for path in left
        if path.is_file()
    }
    ending = {key: value for key, value in asdict(answer).items() if key != "commit"}
    files[f"{_work(order.stage)}/{ENDING}"] = json.dumps(ending) + "\n"
    subject = f"{order.stage}: {answer.how}"
    commit = _commit_files(workspace, order.commit, subject, files, replaced=KEPT_BY_GIT)
    _push(workspace, order, remote, commit, expected=_tip(workspace, order, remote))
    return commit


def _is_order(clone: Path, commit: str) -> bool:
    """Whether a commit is an order; somebody may also name an ordinary one."""
    return worktree_git(clone, "show", "--no-patch", "--format=%s", commit).startswith(SUBJECT)


def _work(stage: str) -> str:
    return f".work/{stage}"


def _tip(workspace: Path, order: Order, remote: str) -> str:
    """The commit of the order's branch on the remote; empty where there is none."""
    found = remote_git(workspace, "ls-remote", "--heads", remote, f"refs/heads/{order.branch}")
    return found.partition("\t")[0]


def _push(workspace: Path, order: Order, remote: str, commit: str, *, expected: str) -> None:
    """Push a commit to the order's branch, if that still is where we saw it."""
    branch = f"refs/heads/{order.branch}"
    lease = f"--force-with-lease={branch}:{expected}"
    remote_git(workspace, "push", "--quiet", lease, remote, f"{commit}:{branch}")


def _commit_files(
    workspace: Path, parent: str, subject: str, files: Mapping[str, str], *, replaced: str = ""
) -> str:
    """A commit of `parent` with these files; neither the index nor a branch of ours changes.

    Args:
        workspace: a checkout of the repository.
        parent: the commit before.
        subject: the new one's message.
        files: path -> content.
        replaced: folder that has no other files afterwards.
    """
    when = worktree_git(workspace, "show", "--no-patch", "--format=%cI", parent)
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        worktree_git(workspace, "read-tree", parent, variables=index)
        if replaced:
            worktree_git(
                workspace, "rm", "-r", "--quiet", "--cached", "--ignore-unmatch", "--", replaced,
                variables=index,
            )  # fmt: skip
        for path, text in files.items():
            blob = worktree_git(workspace, "hash-object", "-w", "--stdin", stdin=text)
            worktree_git(
                workspace, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}",
                variables=index,
            )  # fmt: skip
        tree = worktree_git(workspace, "write-tree", variables=index)
    # The parent's time: the same order, given twice, is one commit.
    dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    return worktree_git(
        workspace, "commit-tree", tree, "-p", parent, "-m", subject, variables=dates
    )


def _restore(workspace: Path, commit: str, path: str, *, since: str | None = None) -> None:
    """Write the files below `path` as a commit has them; leave them where it changes none.

    Args:
        workspace: where to.
        commit: has the files.
        path: folder below the repository.
        since: the commit that it is compared with; None: any files will do.
    """
    if since is None:
        there = worktree_git(workspace, "ls-tree", "-r", "--name-only", commit, "--", path)
    else:
        there = worktree_git(workspace, "diff", "--name-only", since, commit, "--", path)
    if there:
        worktree_git(workspace, "restore", f"--source={commit}", "--worktree", "--", path)
