"""What a stage starts from, and whether it is still the same when its result is to count.

DVC hashes code and data, and reads params, once a stage has ended. An edit meanwhile would be
recorded as what the result was made from. So a stage looks at all three before it reads anything,
and again before it publishes.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tasks
from tasks.params.loading import ParamsError, flatten, read_yaml
from tasks.workspace.dvc_cache import output_hash
from tasks.workspace.dvc_definition import (
    Definition,
    DefinitionError,
    deps_of_parent,
    look_up,
    read_definition,
)
from tasks.workspace.files import git_commit

PARAMS = "params.yaml"
SHOWN = 8
"""Hex digits of a hash in a message."""


class ChangedMeanwhileError(ValueError):
    """Params, code or data are no longer what the stage started from."""


@dataclass(frozen=True, slots=True)
class FileState:
    """A dependency as it was."""

    md5: str
    """As DVC records it; empty where there is nothing."""
    stamps: tuple[tuple[str, int, int, int, int], ...]
    """Of each file: path, size, times of change, inode. While they stay, so does the content."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one run of a stage is made from."""

    stage: str
    definition: Definition
    params: Mapping[str, Any]
    """Dotted keys as dvc.yaml lists them, and their values in params.yaml."""
    files: Mapping[str, FileState]
    head: str
    """The commit that was checked out."""

    def require_unchanged(self, root: Path) -> None:
        """Compare with what is there now.

        Raises:
            ChangedMeanwhileError: it is not the same; the message names each difference.
        """
        if found := list(self._differences(root)):
            raise ChangedMeanwhileError(
                f"changed while the stage ran: {'; '.join(found)}. Its outputs are not published: "
                "they were made from the old state, but dvc.lock would record the new one. Restore "
                "the old state to get that result, or keep the new one; then run it again"
            )

    def _differences(self, root: Path) -> Iterator[str]:
        try:
            values = read_yaml(root / PARAMS)
            definition = read_definition(root, self.stage, values) or self.definition
            found = [
                *_param_differences(self.params, _select(values, self.params)),
                *_definition_differences(self.definition, definition),
            ]
        except (ParamsError, DefinitionError) as error:
            found = [str(error)]
        for path, before in self.files.items():
            if (now := _state_after(root / path, before)) != before.md5:
                found.append(f"{path} (md5 {_short(before.md5)}, now {_short(now)})")
        yield from found
        if found and (head := git_commit(root)) != self.head:
            yield f"git HEAD moved from {_short(self.head)} to {_short(head)}"


def take_snapshot(root: Path, stage: str, sections: tuple[str, ...]) -> Snapshot:
    """Look at all that a stage depends on, before it reads any of it.

    Args:
        root: the repository.
        stage: its name.
        sections: the params it depends on where there is no dvc.yaml to say so.

    Raises:
        ParamsError, DefinitionError: params.yaml or dvc.yaml cannot be read.
    """
    values = read_yaml(root / PARAMS)
    definition = read_definition(root, stage, values)
    if definition is None:
        definition = Definition(cmd="", deps=(), params=sections, outs=())
    return Snapshot(
        stage=stage,
        definition=definition,
        params=_select(values, definition.params),
        files={path: _state(root / path) for path in definition.deps},
        head=git_commit(root),
    )


def require_as_started(root: Path, snapshot: Snapshot) -> None:
    """See that the code in memory is the code on the disk, and DVC's view of the stage is ours.

    Raises:
        ChangedMeanwhileError: an edit came while DVC or this process started.
    """
    edited = [path for path in snapshot.definition.deps if _edited_after_import(root / path)]
    if edited:
        raise ChangedMeanwhileError(
            f"edited while the stage started: {', '.join(edited)}; run it again"
        )
    ours = {os.path.normpath(root.resolve() / path) for path in snapshot.definition.deps}
    theirs = deps_of_parent(root)
    if theirs is not None and theirs != ours:
        names = sorted(os.path.relpath(path, root.resolve()) for path in ours ^ theirs)
        raise ChangedMeanwhileError(
            "dvc.yaml, or what it takes from params.yaml, was edited after dvc had read it: dvc "
            f"and this stage differ in {', '.join(names)}; run it again"
        )


def _edited_after_import(path: Path) -> bool:
    """Whether a module of this process may have been another when it was imported."""
    if path.suffix != ".py" or not path.is_file():
        return False
    if path.stat().st_ctime_ns < tasks.STARTED_NS:
        return False
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return str(path.absolute()) in loaded


def _select(values: Mapping[str, Any], keys: Mapping[str, Any] | tuple[str, ...]) -> dict[str, Any]:
    """The values of dotted keys, those left out that are not there."""
    selected = {}
    for key in keys:
        try:
            selected[key] = look_up(values, key)
        except KeyError:
            continue
    return selected


def _param_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    old, new = flatten(before), flatten(now)
    for key in dict.fromkeys([*old, *new]):
        if not same(old.get(key), new.get(key)):
            yield f"{PARAMS}: {key} ({_shown(old, key)}, now {_shown(new, key)})"


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], default=str) if key in values else "absent"


def same(first: Any, second: Any) -> bool:
    """Whether two values of YAML files are one value: 0.1 is, however it is written."""
    return json.dumps(first, sort_keys=True, default=str) == json.dumps(
        second, sort_keys=True, default=str
    )


def _definition_differences(before: Definition, now: Definition) -> Iterator[str]:
    if before.cmd != now.cmd:
        yield f"dvc.yaml: cmd ({before.cmd!r}, now {now.cmd!r})"
    for part in ("deps", "params", "outs"):
        old, new = set(getattr(before, part)), set(getattr(now, part))
        if old != new:
            changes = [f"without {name}" for name in sorted(old - new)]
            changes += [f"with {name}" for name in sorted(new - old)]
            yield f"dvc.yaml: {part} (now {', '.join(changes)})"


def _state(path: Path) -> FileState:
    return FileState(md5=_hash(path), stamps=_stamps(path))


def _state_after(path: Path, before: FileState) -> str:
    """The hash of what is there now; only what has other stamps is read again."""
    return before.md5 if _stamps(path) == before.stamps else _hash(path)


def _hash(path: Path) -> str:
    return output_hash(path) if path.exists() else ""


def _stamps(path: Path) -> tuple[tuple[str, int, int, int, int], ...]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    facts = [(str(file), file.stat()) for file in files]
    return tuple((n, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for n, s in facts)


def _short(digest: str) -> str:
    return digest[:SHOWN] or "nothing"
