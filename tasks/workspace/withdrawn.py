"""What was withdrawn reaches every workspace: the tombstones of the checkout, added to its own.

A workspace is of a commit, and that may be older than a withdrawal, or the withdrawal may be in no
commit yet. Its stages leave out what its own files of tombstones say, so these have to be complete
before a stage starts.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from preferences.withdrawals import (
    WITHDRAWN_JUDGMENTS,
    WITHDRAWN_TEXTS,
    Tombstone,
    WithdrawalsError,
    load_withdrawals,
)
from tasks.workspace.dvc_cache import cache_folder
from tasks.workspace.git import GitError, git
from tasks.workspace.worktrees import WorkspaceError, checkout_of, worktree_git

WITHDRAWN = (WITHDRAWN_TEXTS, WITHDRAWN_JUDGMENTS)
LOG = "data/withdrawn/log.jsonl"
NOTE = f"contains withdrawn data, see {LOG}"
"""What is said of a model that was trained on something that was withdrawn since."""


def bring_withdrawn(there: Path, workspace: Path) -> list[str]:
    """Add the tombstones of a folder to those of a workspace; the files that changed.

    Where the workspace has no others, its file gets the bytes of the other: DVC then restores what
    was made from those.

    Raises:
        WorkspaceError: a file is damaged, or no stage of the workspace's dvc.yaml reads it.
    """
    changed = []
    for name in WITHDRAWN:
        theirs, path = tombstones_in(there, name), workspace / name
        if not theirs:
            continue
        _require_reader(workspace, name)
        own = tombstones_in(workspace, name)
        if theirs <= own:
            continue
        if own <= theirs:
            content = (there / name).read_bytes()
        else:
            added = "".join(one.line() for one in sorted(theirs - own))
            content = f"{path.read_text(encoding='utf-8').strip()}\n{added}".encode()
        _write(path, content)
        changed.append(name)
    return changed


def tombstones_in(folder: Path, name: str) -> frozenset[Tombstone]:
    """The tombstones of a file of a checkout or workspace; none where there is no file.

    Raises:
        WorkspaceError: it is damaged.
    """
    try:
        return load_withdrawals(folder / name).tombstones
    except WithdrawalsError as error:
        raise WorkspaceError(str(error)) from None


def models_withdrawn(root: Path) -> set[str]:
    """Hashes of the models that contain what was withdrawn here, as the log of the checkout says.

    Raises:
        WithdrawalsError: a line of the log is damaged.
    """
    return _logged(root, "models")


def outputs_withdrawn(root: Path) -> set[str]:
    """Hashes of outputs that had what was withdrawn, as the log of the checkout says.

    A DVC remote may have them still.

    Raises:
        WithdrawalsError: a line of the log is damaged.
    """
    return _logged(root, "objects", "outputs")


def commit_that_knows_more(root: Path) -> str:
    """The newest commit whose log has what that of the checkout lacks, shortened; empty for none.

    Its tombstones keep away what those of the checkout let back.
    """
    path = checkout_of(root) / LOG
    here = path.read_bytes().decode(errors="replace").splitlines() if path.is_file() else []
    more = (
        commit[:9] for commit, lines in _committed_logs(checkout_of(root)) if set(lines) - set(here)
    )
    return next(more, "")


def objects_back(root: Path) -> list[Path]:
    """Objects in DVC's cache that the log names as removed: by another clone, or pulled again.

    Raises:
        WithdrawalsError: a line of the log is damaged.
    """
    cache = cache_folder(root)
    named = (cache / one[:2] / one[2:] for one in sorted(_logged(root, "objects")))
    return [path for path in named if path.is_file()]


def withdrawn_files(folder: Path) -> list[Path]:
    """The files of tombstones that there are."""
    return [folder / name for name in WITHDRAWN if (folder / name).is_file()]


@contextmanager
def withdrawn_in(repository: Path, commit: str) -> Iterator[Path]:
    """A folder that has the files of tombstones of a commit, for a while."""
    listed = worktree_git(repository, "ls-tree", "--name-only", commit, "--", *WITHDRAWN)
    with set_aside(
        {
            # What git prints comes without the end of its last line.
            name: f"{worktree_git(repository, 'show', f'{commit}:{name}')}\n".encode()
            for name in listed.splitlines()
        }
    ) as folder:
        yield folder


@contextmanager
def set_aside(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder that has these files, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            _write(Path(folder) / name, content)
        yield Path(folder)


def _logged(root: Path, *keys: str) -> set[str]:
    """What the log has under these keys, in any commit; the first versions wrote fewer."""
    path, found = checkout_of(root) / LOG, set[str]()
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = {"objects": [], "outputs": [], **json.loads(line)}
            found.update(one for key in keys for one in entry[key])
        except (ValueError, KeyError, TypeError):
            raise WithdrawalsError(
                f"{path}:{number}: expected what `python -m tasks.forget` writes, "
                f"found {line[:80]!r}"
            ) from None
    for _, entries in _committed_logs(checkout_of(root)):
        for line in entries:
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                found.update(one for key in keys for one in entry[key])
    return found


def _committed_logs(checkout: Path) -> Iterator[tuple[str, list[str]]]:
    """The log as the commits of all branches have it, newest first: hash of the commit, lines.

    The one that is checked out may be older than a withdrawal.
    """
    with suppress(GitError, ValueError):
        commits = git(checkout, "log", "--all", "--format=%H", "--", LOG).split()
        for commit in commits:
            with suppress(GitError, ValueError):  # It deleted the file, or it is no UTF-8 there.
                yield commit, git(checkout, "show", f"{commit}:{LOG}").splitlines()


def _require_reader(workspace: Path, name: str) -> None:
    if name not in _dependencies(workspace):
        raise WorkspaceError(
            f"revision: no stage of its dvc.yaml reads {name}, so it would make again what was "
            "withdrawn here; choose a revision since then"
        )


def _dependencies(workspace: Path) -> list[str]:
    try:
        text = (workspace / "dvc.yaml").read_text(encoding="utf-8")
        stages: Mapping[str, Mapping[str, Any]] = YAML(typ="safe").load(text)["stages"]
        entries = [entry.get("do", entry) for entry in stages.values()]
        return [dep for entry in entries for dep in entry.get("deps") or []]
    except (YAMLError, OSError, KeyError, TypeError, AttributeError) as error:
        raise WorkspaceError(f"revision: dvc.yaml: {' '.join(str(error).split())}") from None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    draft.replace(path)
