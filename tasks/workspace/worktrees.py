"""Workspaces of their own: git worktrees below `.work/` that share DVC's cache with the checkout.

A variant has one (`tasks.workspace.variants`), and so have a run of the deployed flow
(`tasks.workspace.runs`) and a stage that another machine has ordered (`tasks.workspace.orders`).
The checkout that they come from is read, never written.
"""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.own_data.files import named_paths
from tasks.params.loading import read_yaml
from tasks.workspace.driver_lock import LOCK_FILE
from tasks.workspace.dvc_cache import cache_folder, quoted, unquoted
from tasks.workspace.git import GitError, git
from tasks.workspace.held import held

WORK = ".work"
VARIANTS_FOLDER = Path(WORK) / "variants"
RUNS_FOLDER = Path(WORK) / "runs"
STAGES_FOLDER = Path(WORK) / "stages"
SETTINGS = (
    "user.name=rlhf-rounds", "user.email=rlhf-rounds@localhost",
    "commit.gpgSign=false", "tag.gpgSign=false",
)  # fmt: skip
"""We commit and tag in the project's name, and ask nobody for a key."""


@dataclass(frozen=True, slots=True)
class Place:
    """The checkout, or the workspace of a variant, run or ordered stage."""

    folder: Path
    name: str = ""
    """Its folder below the checkout; empty for that itself."""

    @property
    def before(self) -> str:
        """What goes before a problem."""
        return f"{self.name}: " if self.name else ""

    @property
    def enter(self) -> str:
        """What goes before a command of DVC."""
        return f"cd {self.name} && " if self.name else ""

    @property
    def run(self) -> str:
        """The command that runs the stages."""
        return "dvc repro" if self.name else "make repro"

    @property
    def params(self) -> str:
        """Where a person mends its params.yaml: that of a variant is written anew by each run."""
        path = Path(self.name)
        of_variant = path.parent == VARIANTS_FOLDER
        return f"params/{path.name}.yaml or params.yaml" if of_variant else "it"


class WorkspaceError(Exception):
    """A workspace that does not exist or cannot be prepared."""


class RevisionError(WorkspaceError):
    """There is no such branch, tag or commit."""


def workspaces(root: Path) -> list[Path]:
    """Workspaces of the variants, runs and ordered stages that have been prepared."""
    folders = (VARIANTS_FOLDER, RUNS_FOLDER, STAGES_FOLDER)
    return [
        path.parent for folder in folders for path in sorted((root / folder).glob("*/dvc.yaml"))
    ]


@contextmanager
def none_begins(root: Path) -> Iterator[None]:
    """Nobody makes or takes up a workspace meanwhile: whoever wants to waits."""
    with ExitStack() as stack:
        for folder in (VARIANTS_FOLDER, RUNS_FOLDER, STAGES_FOLDER):
            (root / folder).mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(root / folder / ".lock"))
        yield


def checkout_of(place: Path) -> Path:
    """The checkout that a workspace comes from; the same folder where it is none."""
    folder = place.resolve()
    kinds = [one.parts for one in (VARIANTS_FOLDER, RUNS_FOLDER, STAGES_FOLDER)]
    return folder.parents[2] if folder.parent.parts[-2:] in kinds else place


def link_own_files(root: Path, workspace: Path) -> None:
    """Links to the files and folders that the params name and git does not know.

    Raises:
        WorkspaceError: one lies outside of the repository and is named by a relative path.
        ParamsError: params.yaml is not valid YAML.
    """
    for named in named_paths(read_yaml(workspace / "params.yaml")):
        if Path(named.path).is_absolute():
            continue
        source, link = root / named.path, workspace / named.path
        if not Path(os.path.normpath(source)).is_relative_to(root):
            raise WorkspaceError(
                f"{named.key}: {named.path} leads out of the repository, which is another place "
                f"from {workspace.relative_to(root)}; write its full path"
            )
        _link(source, link)
        if link.is_dir() and link.resolve().is_relative_to(workspace.resolve()):
            _link_rest(root, workspace, Path(os.path.normpath(named.path)))


def _link(source: Path, link: Path) -> None:
    if link.is_symlink() and not (source.exists() and link.exists()):
        link.unlink()  # What it leads to has gone, or the checkout has been moved.
    if link.exists() or not source.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(source.absolute())


def _link_rest(root: Path, workspace: Path, folder: Path) -> None:
    """Links to the files that are in no commit, in a folder of which git knows some.

    Of a folder that is a repository of its own it knows none.
    """
    listed = worktree_git(root, "ls-tree", "-r", "-z", "--name-only", "HEAD", "--", str(folder))
    known = set(listed.split("\0"))
    there = {
        path.relative_to(place)
        for place in (root, workspace)
        for path in (place / folder).rglob("*")
        if path.is_symlink() or path.is_file()
    }
    for name in sorted(there):
        if name.as_posix() not in known and ".git" not in name.parts:
            _link(root / name, workspace / name)


def share_cache(root: Path, workspace: Path) -> None:
    """Give the workspace the main checkout's local DVC settings, its cache and its remotes.

    Whoever may not read the checkout's local settings, which may hold keys, cannot read these.
    """
    source = root / ".dvc" / "config.local"
    local = _read_config(source)
    shared = _read_config(root / ".dvc" / "config")
    # Also where the user's own settings name it: what is written here comes before them.
    _set(local, "cache", "dir", quoted(str(cache_folder(root).parents[1].resolve())))
    for name in dict.fromkeys([*shared.sections(), *local.sections()]):
        url = unquoted(local.get(name, "url", fallback=shared.get(name, "url", fallback="")))
        # As DVC takes it: `~` is somebody's home.
        if url and "://" not in url and not Path(os.path.expanduser(url)).is_absolute():  # noqa: PTH111
            _set(local, name, "url", quoted(str((root / ".dvc" / url).resolve())))
    target = workspace / ".dvc" / "config.local"
    target.parent.mkdir(exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        if source.exists():
            target.chmod(stat.S_IMODE(source.stat().st_mode))
        local.write(file)


def prune_worktrees(root: Path) -> None:
    """Have git forget our worktrees whose folder has gone, and find those that have moved.

    `git worktree prune` would forget others as well, with what is staged there: one of the user's
    may be on a disk that is away, or outside of the container that we run in.
    """
    find_moved(root)
    for noted in _common_folder(root).glob("worktrees/*/gitdir"):
        there = noted.parent / noted.read_text(encoding="utf-8").strip()
        is_ours = there.is_relative_to(root.resolve() / WORK)
        if is_ours and not there.exists() and not noted.with_name("locked").exists():
            shutil.rmtree(noted.parent)


def find_moved(root: Path) -> None:
    """Have git find the workspaces of a checkout that was moved or copied with them.

    Git notes absolute paths. After a move it knows none of them, and `git worktree prune` forgets
    them for good; in a copy, git in a workspace would work on the branches of the original.
    """
    common = _common_folder(root)
    for file in (root / WORK).glob("*/*/.git"):
        if not file.is_file():
            continue
        here = file.parent.resolve() / ".git"
        noted = Path(file.read_text(encoding="utf-8").strip().removeprefix("gitdir: "))
        ours = common / "worktrees" / noted.name
        if not (ours / "gitdir").is_file():
            continue
        there = Path((ours / "gitdir").read_text(encoding="utf-8").strip())
        stays = noted.resolve() == ours.resolve()
        # One of that name elsewhere is another's; and what is still there has not moved.
        if there.parts[-3:] != here.parts[-3:] or (stays and there.exists()):
            continue
        (ours / "gitdir").write_text(f"{here}\n", encoding="utf-8")
        file.write_text(f"gitdir: {ours}\n", encoding="utf-8")


def forget_lost(root: Path, workspace: Path) -> None:
    """Have git forget worktrees whose folder has gone, and remove the workspace if it is half made.

    A git that is killed while it makes one leaves it locked, with some of its files. Call it where
    nobody else makes this one now.
    """
    prune_worktrees(root)
    listed = worktree_git(root, "worktree", "list", "--porcelain").split("\n\n")
    for lines in map(str.splitlines, listed):
        if lines[0] != f"worktree {workspace.resolve()}" or "locked initializing" not in lines:
            continue
        if any(path.name != LOCK_FILE.name for path in (workspace / WORK).glob("*")):
            # Completed by an earlier version; what has run there must not be lost.
            worktree_git(root, "worktree", "unlock", str(workspace))
        else:
            shutil.rmtree(workspace, ignore_errors=True)
            worktree_git(root, "worktree", "remove", "--force", "--force", str(workspace))


def remote_git(folder: Path, *arguments: str) -> str:
    """As `worktree_git`, but in the checkout, whence a remote may be named by a relative path.

    Args:
        folder: the checkout or a workspace of it, with the same branches, tags and remotes.
        arguments: a command of git's that talks to a remote.

    Raises:
        WorkspaceError: git failed.
    """
    first = worktree_git(folder, "worktree", "list", "--porcelain").partition("\n")[0]
    return worktree_git(Path(first.removeprefix("worktree ")), *arguments)


def find_commit(clone: Path, revision: str, remote: str) -> str:
    """The commit that somebody has ordered, after a look at what is new on the remote.

    Raises:
        RevisionError: there is none.
        WorkspaceError: the remote cannot be reached.
    """
    (clone / STAGES_FOLDER).mkdir(parents=True, exist_ok=True)
    # Two fetches at once would meet at the references.
    with held(clone / STAGES_FOLDER / ".lock"):
        branches = f"+refs/heads/*:refs/remotes/{remote}/*"
        worktree_git(clone, "fetch", "--quiet", "--prune", remote, branches)
    # A branch here may be older than the one that is meant.
    look = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    for name in (f"{remote}/{revision}", revision):
        try:
            return worktree_git(clone, *look, f"{name}^{{commit}}")
        except WorkspaceError:
            continue
    raise RevisionError(f"--revision: no branch, tag or commit {revision!r} here or on {remote}")


def worktree_git(
    folder: Path,
    *arguments: str,
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """What git prints; commits and tags are in the project's name.

    Raises:
        WorkspaceError: git failed.
    """
    try:
        return git(folder, *arguments, settings=SETTINGS, stdin=stdin, variables=variables)
    except GitError as error:
        raise WorkspaceError(str(error)) from None


def _common_folder(root: Path) -> Path:
    """Git's, in which it notes all worktrees."""
    return Path(worktree_git(root, "rev-parse", "--path-format=absolute", "--git-common-dir"))


def _set(config: ConfigParser, section: str, key: str, value: str) -> None:
    if not config.has_section(section):
        config.add_section(section)
    config.set(section, key, value)


def _read_config(path: Path) -> ConfigParser:
    config = ConfigParser(interpolation=None)
    config.read(path, encoding="utf-8")
    return config
