"""Variants: `params/<name>.yaml` laid over `params.yaml`, run in a workspace of their own.

The workspace is a git worktree below `.work/variants/`, with the tracked files as they are now,
uncommitted changes included, and links to untracked files that its params name. It shares DVC's
cache, so what a variant has in common with the main line is restored instead of run, and keeps its
own `.work`, outputs and `dvc.lock` between calls. What was withdrawn in either stays so.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ruamel.yaml import YAML

from tasks.params.loading import ParamsError, check_params, read_yaml
from tasks.params.overlays import lay_over
from tasks.workspace.driver_lock import Driver, refuse_if_busy, sole_use
from tasks.workspace.held import held
from tasks.workspace.withdrawn import (
    WITHDRAWN,
    bring_withdrawn,
    tombstones_in,
    withdrawn_files,
)
from tasks.workspace.worktrees import (
    VARIANTS_FOLDER,
    WorkspaceError,
    forget_lost,
    link_own_files,
    share_cache,
    worktree_git,
)


def available(root: Path) -> list[str]:
    """Names of the variants below `params/`."""
    return sorted(path.stem for path in (root / "params").glob("*.yaml"))


def variant_of(workspace: Path) -> str | None:
    """The variant whose workspace this is, None of the main line's."""
    resolved = workspace.resolve()
    is_one = resolved.parent.parts[-2:] == VARIANTS_FOLDER.parts
    return resolved.name if is_one else None


def params_files(name: str) -> str:
    """The files with the params of a variant, in words."""
    return f"params/{name}.yaml over params.yaml"


def require_valid(root: Path, name: str) -> None:
    """Check the params of a variant, before its workspace is made or changed.

    Raises:
        WorkspaceError: no such variant, or its file cannot be read as a mapping.
        ParamsError: a value is not valid, or params.yaml cannot be read as a mapping.
    """
    overlay = read_overlay(root, name)
    check_params(lay_over(read_yaml(root / "params.yaml"), overlay), root, params_files(name))


@contextmanager
def variant_workspace(root: Path, name: str, driver: Driver) -> Iterator[Path]:
    """Make or refresh the workspace of variant `name`, and hold it; yields its path.

    Raises:
        WorkspaceError: no such variant, its file cannot be read as a mapping, or git refuses.
        ParamsError: params.yaml cannot be read as a mapping.
        WorkspaceBusyError: something runs there.
    """
    with _overlaid_workspace(root, name, read_overlay(root, name), driver) as workspace:
        yield workspace


def prepare_overlaid(root: Path, name: str, overlay: Mapping[str, object]) -> Path:
    """Make or refresh a workspace with what is laid over params.yaml given; its path.

    Raises:
        WorkspaceError: git refuses.
        ParamsError: params.yaml cannot be read as a mapping.
        WorkspaceBusyError: something runs there.
    """
    driver = Driver(name="the preparation of a workspace")
    with _overlaid_workspace(root, name, overlay, driver) as workspace:
        return workspace


@contextmanager
def _overlaid_workspace(
    root: Path, name: str, overlay: Mapping[str, object], driver: Driver
) -> Iterator[Path]:
    workspace = root / VARIANTS_FOLDER / name
    workspace.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # Two variants started at once: git's index takes one at a time, and says nothing to the
        # other. Two of one variant must not meet before one of them holds it.
        with held(workspace.parent / ".lock"):
            if workspace.exists():
                refuse_if_busy(workspace)
            for file in WITHDRAWN:  # Damaged ones are refused before anything is changed.
                tombstones_in(root, file)
            commit = _snapshot(root)
            with _set_aside(workspace) as kept:
                _check_out(root, workspace, commit, kept)
                stack.enter_context(sole_use(workspace, driver))
                bring_withdrawn(root, workspace)
                bring_withdrawn(kept, workspace)
        _write_params(workspace / "params.yaml", overlay)
        link_own_files(root, workspace)
        share_cache(root, workspace)
        yield workspace


def read_overlay(root: Path, name: str) -> Mapping[str, object]:
    """What a variant lays over params.yaml.

    Raises:
        WorkspaceError: no such variant, or its file cannot be read as a mapping.
    """
    path = root / "params" / f"{name}.yaml"
    if name not in available(root):
        found = ", ".join(available(root)) or "none"
        raise WorkspaceError(
            f"no variant {name!r}: params/{name}.yaml is missing; there are: {found}"
        )
    try:
        return read_yaml(path)
    except ParamsError as error:
        raise WorkspaceError(str(error).replace(str(path), f"params/{name}.yaml")) from None


def _snapshot(root: Path) -> str:
    """A commit with the tracked files as they are: HEAD, or a stash that no list mentions."""
    head = worktree_git(root, "rev-parse", "--verify", "HEAD")
    worktree_git(
        root, "status", "--porcelain"
    )  # A file that was only touched would fail `stash create`.
    noted = worktree_git(root, "diff", "--name-only", "--diff-filter=A", "-z").split("\0")
    if not (noted := [path for path in noted if path]):
        return worktree_git(root, "stash", "create") or head
    with tempfile.TemporaryDirectory() as folder:
        # What `git add -N` has noted git cannot stash, so it is added in an index beside its own.
        index = Path(folder) / "index"
        shutil.copyfile(root / worktree_git(root, "rev-parse", "--git-path", "index"), index)
        beside = {"GIT_INDEX_FILE": str(index)}
        worktree_git(root, "add", "--", *noted, variables=beside)
        return worktree_git(root, "stash", "create", variables=beside)


@contextmanager
def _set_aside(workspace: Path) -> Iterator[Path]:
    """A folder beside the workspace with what of it a checkout overwrites and nobody else has.

    It goes once the context ends, and where that fails, all of it is back before. So it is there
    already only after a kill: then it is what the workspace had, whatever the checkout has left.
    """
    kept = workspace.with_name(f".{workspace.name}.kept")
    draft = kept.with_name(f"{kept.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    if not (workspace / ".git").exists():
        shutil.rmtree(kept, ignore_errors=True)
    if kept.exists():
        for path in withdrawn_files(workspace):  # Of a withdrawal since the kill.
            _add_lines(path, kept / path.relative_to(workspace))
    else:
        draft.mkdir()
        _copy([*withdrawn_files(workspace), *_results(workspace)], workspace, draft)
        draft.rename(kept)
    try:
        yield kept
    except BaseException:
        if workspace.exists():
            _copy([*withdrawn_files(kept), *_results(kept)], kept, workspace)
        raise
    finally:
        # Renamed first: half of it would be taken for the whole.
        kept.rename(draft)
        shutil.rmtree(draft)


def _copy(files: Iterable[Path], here: Path, there: Path) -> None:
    for path in files:
        target = there / path.relative_to(here)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _add_lines(here: Path, there: Path) -> None:
    """Add the lines of one file that another lacks."""
    known = there.read_text(encoding="utf-8") if there.exists() else ""
    more = [line for line in here.read_text(encoding="utf-8").splitlines() if line not in known]
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text("".join(f"{line}\n" for line in [*known.splitlines(), *more]), "utf-8")


def _results(folder: Path) -> list[Path]:
    """What a run writes and git tracks: the main line's know nothing of this variant's runs."""
    files = [folder / "dvc.lock", *(folder / "metrics").rglob("*.json")]
    return [path for path in files if path.exists()]


def _check_out(root: Path, workspace: Path, commit: str, kept: Path) -> None:
    """Bring the tracked files to `commit`, but for results, which come from `kept`."""
    forget_lost(root, workspace)
    if not (workspace / ".git").exists():
        worktree_git(root, "worktree", "add", "--force", "--detach", str(workspace), commit)
        return
    worktree_git(workspace, "checkout", "--force", "--detach", commit)
    if results := _results(kept):
        shutil.rmtree(workspace / "metrics", ignore_errors=True)
    _copy(results, kept, workspace)


def _write_params(path: Path, overlay: Mapping[str, object]) -> None:
    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    # Keep the order: that of the rounds means something. (ruamel's stub says None only.)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    merged = lay_over(read_yaml(path), overlay)
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(merged, file)
