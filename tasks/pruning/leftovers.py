"""Finds what no kept run needs; removes nothing.

Kept are all commits of all branches and tags (or only their tips), experiments, what is checked
out, the variants that `params/` still has, and the runs of experiments that are still described.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks.params.loading import ParamsError, read_yaml
from tasks.running.amounts import amount
from tasks.running.provenance import RECORD
from tasks.tracking.registered_names import VERDICTS
from tasks.workspace.dvc_definition import look_up
from tasks.workspace.dvc_process import dvc_environment
from tasks.workspace.files import read_json
from tasks.workspace.fresh_clone import CLONE
from tasks.workspace.git import GitError, git
from tasks.workspace.runs import branch_of
from tasks.workspace.shared_weights import DRAFTS
from tasks.workspace.work_folder import checkpoint_folders, idle_stages
from tasks.workspace.worktrees import VARIANTS_FOLDER, prune_worktrees, workspaces

EXPERIMENTS = "experiments/params/*.yaml"
"""The run of one has the workspace of a variant called NAME-VARIANT-seedN."""
DESCRIPTIONS = ("params/*.yaml", EXPERIMENTS)
LABELS = ".work/feedback"
"""Where a workspace keeps what people have said, unless its params name another store."""
DRAFT_SECONDS = 24 * 3600
"""A draft exists for as long as it takes to read or send a model; an older one was left."""
REMOVING = re.compile(r"^Removing (.+)$", re.MULTILINE)


class PruneError(Exception):
    """DVC refused; the message is its own."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that nothing needs."""

    kind: str
    """DVC's cache, checkpoints, drafts, variants, clones of `make verify`, or MLflow's copies."""
    name: str
    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(_size(path) for path in self.paths)

    def remove(self) -> None:
        """Delete its files and folders."""
        for path in self.paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


class Cache:
    """DVC's own garbage collection, told which runs are kept."""

    def __init__(
        self, root: Path, kept: Sequence[Path], environment: dict[str, str], *, tips: bool
    ):
        """Nothing runs yet.

        Args:
            root: the checkout.
            kept: workspaces whose last runs are kept.
            environment: of this process.
            tips: keep only the newest commit of each branch, and the tags.
        """
        self._root = root
        self._environment = dvc_environment(environment)
        self._flags = ["--all-branches", "--all-tags"] if tips else ["--all-commits"]
        # `dvc exp list` has them, which are on no branch; `dvc exp remove` lets them go.
        self._flags += ["--all-experiments"]
        self._flags += ["--projects", *map(str, kept)] if kept else []

    def leftover(self) -> Leftover:
        """The objects that DVC would remove.

        Raises:
            PruneError: DVC refuses.
        """
        paths = tuple(Path(found) for found in REMOVING.findall(self._gc("--dry")))
        return Leftover("DVC's cache", amount(len(paths), "object"), paths)

    def collect(self) -> None:
        """Have DVC remove them.

        Raises:
            PruneError: DVC refuses.
        """
        self._gc("--force")

    def _gc(self, how: str) -> str:
        command = [sys.executable, "-m", "dvc", "gc", "-v", how, *self._flags]
        done = subprocess.run(
            command,
            cwd=self._root,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise PruneError(f"dvc gc: {lines[-1]}")
        return done.stdout + done.stderr


def kept_workspaces(root: Path) -> list[Path]:
    """All workspaces but those of variants that nothing describes any more."""
    orphaned = {path: why for path, why in _orphaned(root)}
    return [path for path in workspaces(root) if orphaned.get(path, "kept")]


def variants(root: Path) -> Iterator[Leftover]:
    """Workspaces of variants that nothing describes any more, so that nothing runs there again."""
    for path, why in _orphaned(root):
        if not why:
            yield Leftover("variants", path.name, (path,))


def staying_variants(root: Path) -> dict[str, str]:
    """Variants that nothing describes here any more: name -> why their workspace stays."""
    return {path.name: why for path, why in _orphaned(root) if why}


def forget_worktrees(root: Path) -> None:
    """Tell git that the workspaces are gone."""
    prune_worktrees(root)


def checkpoints(root: Path, places: Sequence[Path]) -> Iterator[Leftover]:
    """Checkpoints of checkout and workspaces that no stage resumes from.

    A stage that has finished needs none, unless it may have to run again: as long as it keeps the
    note of what it was made from, DVC may not have recorded it. One that was interrupted needs its
    newest.
    """
    for place in places:
        for work in idle_stages(place):
            folders = checkpoint_folders(work)
            outcome = read_json(work / "outcome.json") or {}
            recorded = outcome.get("status") == "done" and not (work / RECORD).exists()
            idle = folders if recorded else folders[:-1]
            if idle:
                yield Leftover("checkpoints", work.relative_to(root).as_posix(), tuple(idle))


def clones(root: Path) -> Iterator[Leftover]:
    """The clone that a verification kept to be looked at."""
    if (root / CLONE).is_dir():
        yield Leftover("clones of `make verify`", CLONE.as_posix(), (root / CLONE,))


def drafts(root: Path, places: Sequence[Path]) -> Iterator[Leftover]:
    """Links to weights, and copies, that a kill has left: they keep what the cache lets go."""
    for place in places:
        # The gate copies the weights in production beside its verdicts.
        for path in sorted([*(place / DRAFTS).glob("*"), *(place / VERDICTS).glob("*/")]):
            # Not its own time of change: a link has that of the weights. Somebody may work now.
            if time.time() - path.lstat().st_ctime > DRAFT_SECONDS:
                yield Leftover("drafts", path.relative_to(root).as_posix(), (path,))


def _orphaned(root: Path) -> Iterator[tuple[Path, str]]:
    """Workspaces of variants that nothing describes here, and why one stays all the same."""
    here = [path.relative_to(root) for each in DESCRIPTIONS for path in root.glob(each)]
    for path in workspaces(root):
        if path.parent != root / VARIANTS_FOLDER or _describe(here, path.name):
            continue
        if labels := labels_in(path):
            yield path, f"it has a labelling store of its own, {labels}"
        elif branch := _branch_that_describes(root, path.name):
            yield path, f"the branch {branch} describes it"
        else:
            yield path, ""


def labels_in(workspace: Path) -> str:
    """The labelling store that lies in a workspace; empty where there is none."""
    named = LABELS
    with suppress(ParamsError, KeyError):  # Without params nobody was asked anything.
        store = look_up(read_yaml(workspace / "params.yaml"), "label.store")
        named = str(store).removeprefix("sqlite:///")
    for name in (LABELS, named):
        place = workspace / name
        if place.exists() and place.resolve().is_relative_to(workspace.resolve()):
            return name
    return ""


def _describe(files: Iterable[Path], variant: str) -> bool:
    """Whether one of the files is the variant's, or that of an experiment with such a run.

    A sweep goes on in those, and experiments on finished runs begin with their models.
    """
    return any(
        variant.startswith(f"{file.stem}-") if file.match(EXPERIMENTS) else variant == file.stem
        for file in files
        if file.suffix == ".yaml"
    )


def _branch_that_describes(root: Path, variant: str) -> str:
    """A branch whose params have the variant; none where it is but a run's that was ordered."""
    with suppress(GitError):
        # Git's short names are longer where a tag is called alike.
        listed = git(root, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads")
        for branch in listed.split():
            if branch.startswith(branch_of("")):
                continue
            files = git(
                root, "ls-tree", "--name-only", f"refs/heads/{branch}", "--",
                "params/", "experiments/params/",
            )  # fmt: skip
            if _describe(map(Path, files.splitlines()), variant):
                return branch
    return ""


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink())
