"""Variants: `params/<name>.yaml` laid over `params.yaml`, run in a workspace of their own.

The workspace is a git worktree below `.work/variants/`, with the tracked files as they are now,
uncommitted changes included, and links to untracked files that its params name. It shares DVC's
cache, so what a variant has in common with the main line is restored instead of run, and keeps its
own `.work`, outputs and `dvc.lock` between calls.
"""

import os
import shutil
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

from ruamel.yaml import YAML

from tasks.own_data.files import named_paths
from tasks.params.overlays import lay_over
from tasks.workspace.driver_lock import refuse_if_busy
from tasks.workspace.git import GitError, git
from tasks.workspace.held import held

VARIANTS_FOLDER = Path(".work") / "variants"
IDENTITY = ("-c", "user.name=rlhf-rounds", "-c", "user.email=rlhf-rounds@localhost")


class VariantError(Exception):
    """A variant that does not exist or cannot be prepared."""


def available(root: Path) -> list[str]:
    """Names of the variants below `params/`."""
    return sorted(path.stem for path in (root / "params").glob("*.yaml"))


def workspaces(root: Path) -> list[Path]:
    """Workspaces of the variants that have been prepared."""
    return sorted(path.parent for path in (root / VARIANTS_FOLDER).glob("*/dvc.yaml"))


def variant_of(workspace: Path) -> str | None:
    """The variant whose workspace this is, None of the main line's."""
    resolved = workspace.resolve()
    is_one = resolved.parent.parts[-2:] == VARIANTS_FOLDER.parts
    return resolved.name if is_one else None


def prepare_workspace(root: Path, name: str) -> Path:
    """Make or refresh the workspace of variant `name`; its path.

    Raises:
        VariantError: no such variant, its file is no mapping, or git refuses.
        WorkspaceBusyError: something runs there.
    """
    return prepare_overlaid(root, name, _read_overlay(root, name))


def prepare_overlaid(root: Path, name: str, overlay: Mapping[str, object]) -> Path:
    """As `prepare_workspace`, with what is laid over params.yaml given.

    Raises:
        VariantError: git refuses.
        WorkspaceBusyError: something runs there.
    """
    workspace = root / VARIANTS_FOLDER / name
    workspace.parent.mkdir(parents=True, exist_ok=True)
    # Two variants started at once: git's index takes one at a time, and says nothing to the other.
    with held(workspace.parent / ".lock"):
        if workspace.exists():
            refuse_if_busy(workspace)
        _check_out(root, workspace, _snapshot(root))
    _write_params(workspace / "params.yaml", overlay)
    link_own_files(root, workspace)
    _share_cache(root, workspace)
    return workspace


def _read_overlay(root: Path, name: str) -> Mapping[str, object]:
    path = root / "params" / f"{name}.yaml"
    if name not in available(root):
        found = ", ".join(available(root)) or "none"
        raise VariantError(
            f"no variant {name!r}: params/{name}.yaml is missing; there are: {found}"
        )
    overlay = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    if not isinstance(overlay, Mapping):
        found_type = type(overlay).__name__
        raise VariantError(
            f"params/{name}.yaml: expected a mapping of sections, found {found_type}"
        )
    return overlay


def _snapshot(root: Path) -> str:
    """A commit with the tracked files as they are: HEAD, or a stash that no list mentions."""
    head = _git(root, "rev-parse", "--verify", "HEAD")
    _git(root, "status", "--porcelain")  # A file that was only touched would fail `stash create`.
    return _git(root, *IDENTITY, "stash", "create") or head


def _check_out(root: Path, workspace: Path, commit: str) -> None:
    """Bring the tracked files to `commit`; ignored ones and what a run writes stay.

    That is dvc.lock and metrics/: the main line's know nothing of what this variant has run.
    """
    if not (workspace / ".git").exists():
        _git(root, "worktree", "prune")
        _git(root, "worktree", "add", "--force", "--detach", str(workspace), commit)
        return
    files = [workspace / "dvc.lock", *(workspace / "metrics").rglob("*.json")]
    kept = {path: path.read_bytes() for path in files if path.exists()}
    _git(workspace, "checkout", "--force", "--detach", commit)
    if kept:
        shutil.rmtree(workspace / "metrics", ignore_errors=True)
    for path, content in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _write_params(path: Path, overlay: Mapping[str, object]) -> None:
    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    # Keep the order: that of the rounds means something. (ruamel's stub says None only.)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    merged = lay_over(yaml.load(path.read_text(encoding="utf-8")), overlay)
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(merged, file)


def link_own_files(root: Path, workspace: Path) -> None:
    """Links to the files and folders that the params name and git does not know.

    Raises:
        VariantError: one lies outside of the repository and is named by a relative path.
    """
    values = YAML(typ="safe").load((workspace / "params.yaml").read_text(encoding="utf-8"))
    for named in named_paths(values):
        if Path(named.path).is_absolute():
            continue
        source, link = root / named.path, workspace / named.path
        if not Path(os.path.normpath(source)).is_relative_to(root):
            raise VariantError(
                f"{named.key}: {named.path} leads out of the repository, which is another place "
                f"from {workspace.relative_to(root)}; write its full path"
            )
        if link.is_symlink() and not source.exists():
            link.unlink()
        if link.exists() or not source.exists():
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source.absolute())


def _share_cache(root: Path, workspace: Path) -> None:
    """Give the workspace the main checkout's local DVC settings, and its cache."""
    local = _read_config(root / ".dvc" / "config.local")
    shared = _read_config(root / ".dvc" / "config")
    # DVC reads a relative folder as relative to the file that names it.
    folder = local.get("cache", "dir", fallback=shared.get("cache", "dir", fallback="cache"))
    if not local.has_section("cache"):
        local.add_section("cache")
    local.set("cache", "dir", str((root / ".dvc" / folder).resolve()))
    target = workspace / ".dvc" / "config.local"
    target.parent.mkdir(exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        local.write(file)


def _read_config(path: Path) -> ConfigParser:
    config = ConfigParser(interpolation=None)
    config.read(path, encoding="utf-8")
    return config


def _git(folder: Path, *arguments: str) -> str:
    try:
        return git(folder, *arguments)
    except GitError as error:
        raise VariantError(str(error)) from None
