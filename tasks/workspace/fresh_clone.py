"""A clone of one commit in `.work/verify`, for a run that takes nothing from the checkout.

It has its own `.git`, which borrows the checkout's objects, and its own empty DVC cache. So
nothing in it, and no kill, changes the checkout; and nothing cached or edited there gets in.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.workspace.driver_lock import WorkspaceBusyError
from tasks.workspace.dvc_cache import quoted
from tasks.workspace.git import git
from tasks.workspace.held import take
from tasks.workspace.worktrees import link_own_files

CLONE = Path(".work") / "verify"
LOCK = Path(".work") / "verify.lock"


@contextmanager
def sole_clone(root: Path) -> Iterator[Path]:
    """The folder for the clone, held by this process; what an earlier run left there is removed.

    Raises:
        WorkspaceBusyError: another process holds it.
    """
    (root / LOCK).parent.mkdir(exist_ok=True)
    if (lock := take(root / LOCK)) is None:
        pid = (root / LOCK).read_text(encoding="utf-8").strip() or "just started"
        raise WorkspaceBusyError(f"{root}: `make verify` is running here (process {pid})")
    with lock:
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        shutil.rmtree(root / CLONE, ignore_errors=True)
        yield root / CLONE


def clone_commit(root: Path, commit: str, folder: Path) -> None:
    """Make `folder` a clone of `root` at `commit`, with links to the user's own data.

    Raises:
        GitError: git refuses.
        WorkspaceError: a file that the params name lies outside of the repository.
        ParamsError: params.yaml is not valid YAML.
    """
    git(root, "clone", "--quiet", "--shared", "--no-checkout", str(root), str(folder))
    git(folder, "checkout", "--quiet", "--detach", commit)
    link_own_files(root, folder)
    # Named here, because a user's own settings may name another cache for all repositories.
    local = f"[cache]\n    dir = {quoted(str(folder / '.dvc' / 'cache'))}\n"
    (folder / ".dvc" / "config.local").write_text(local, encoding="utf-8")


def uncommitted(root: Path) -> list[str]:
    """Tracked files that differ from the commit that is checked out."""
    lines = git(root, "status", "--porcelain", "--untracked-files=no").splitlines()
    return [line.split(maxsplit=1)[1] for line in lines]


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
