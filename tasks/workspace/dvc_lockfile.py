"""Reads `dvc.lock`: which hashes went into each stage and which came out."""

import contextlib
import functools
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

SETTLED_NS = 1_000_000_000
"""DVC writes the file in place, in less than this."""
EMPTY = (
    "empty, as a loss of power or a kill may leave it; take that of the commit "
    "(git checkout HEAD -- dvc.lock)"
)
CONFLICT = "is it a merge conflict? Then take one side whole (docs/how-to/upgrade.md)"

_HEADS = ("schema: '2.0'\nstages:\n", 'schema: "2.0"\nstages:\n')
_ENTRIES = re.compile(r"^  ([A-Za-z_][\w@-]*):\n", re.MULTILINE)
_INSIDE = re.compile(r"(?: {4}[^\n&*]*\n)+")
"""Lines of one entry, without YAML's anchors, which may be in another entry."""


@dataclass(frozen=True, slots=True)
class LockedStage:
    """One stage as DVC last recorded it."""

    deps: Mapping[str, str]
    """Path -> md5 (`.dir` at the end for a folder)."""
    outs: Mapping[str, str]
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of params.yaml: section or dotted key -> value."""


class DamagedLockError(ValueError):
    """A dvc.lock that cannot be read; the message says where and why."""


def read_entries(root: Path) -> dict[str, dict[str, Any]]:
    """Stage name -> its entry in dvc.lock, which callers only read; empty where nothing has run.

    Raises:
        DamagedLockError: the file is damaged.
    """
    path = root / "dvc.lock"
    if not path.exists():
        return {}
    try:
        return parsed(not_empty(path.read_text(encoding="utf-8")))
    except DamagedLockError as error:
        raise DamagedLockError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise DamagedLockError(f"{path}: not UTF-8 (byte {error.start})") from None


def not_empty(text: str) -> str:
    """The text of a dvc.lock that is there.

    Raises:
        DamagedLockError: there is nothing in it, which DVC refuses, and never writes.
    """
    if not text.strip():
        raise DamagedLockError(EMPTY)
    return text


@functools.lru_cache(maxsize=1)
def parsed(text: str) -> dict[str, dict[str, Any]]:
    """Stage name -> its entry in the text of a dvc.lock.

    Raises:
        DamagedLockError: it is none.
    """
    # A stage asks three times for what takes 0.1 s to read.
    return _by_entry(text) or _as_a_whole(text)


def _by_entry(text: str) -> dict[str, dict[str, Any]] | None:
    """What DVC has written, each entry read once in however many commits; None for anything else.

    Histories of many rounds have hundreds of files of hundreds of entries, nearly all the same.
    """
    # As git shows a file, it has no line end at its end.
    head, *pieces = _ENTRIES.split(text.rstrip("\n") + "\n")
    names, bodies = pieces[::2], pieces[1::2]
    if head not in _HEADS or len(set(names)) < len(names):
        return None
    if not all(map(_INSIDE.fullmatch, bodies)):
        return None
    try:
        return {name: _read_entry(body) for name, body in zip(names, bodies, strict=True)}
    except (YAMLError, TypeError):
        return None


@functools.lru_cache(maxsize=10_000)
def _read_entry(body: str) -> dict[str, Any]:
    entry = YAML(typ="safe").load(body)
    if not isinstance(entry, dict):
        raise TypeError(type(entry).__name__)
    return entry


def _as_a_whole(text: str) -> dict[str, dict[str, Any]]:
    try:
        record = YAML(typ="safe").load(text) or {}
    except MarkedYAMLError as error:
        # YAML itself notices a merge conflict only below the line where it begins.
        known = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("<<<<<<<")]
        known += [error.problem_mark.line + 1] if error.problem_mark else []
        where = f" (line {known[0]})" if known else ""
        raise DamagedLockError(f"not valid YAML{where}; {CONFLICT}") from None
    except YAMLError as error:
        raise DamagedLockError(f"not valid YAML ({' '.join(str(error).split())})") from None
    entries = record.get("stages", {}) if isinstance(record, Mapping) else None
    if not isinstance(entries, Mapping) or not all(
        isinstance(entry, Mapping) for entry in entries.values()
    ):
        raise DamagedLockError("expected a mapping with an entry for each of its stages")
    found: dict[str, dict[str, Any]] = dict(entries)
    return found


def read_lock(root: Path) -> dict[str, LockedStage]:
    """Stage name -> recorded hashes; empty where nothing has run yet.

    Raises:
        DamagedLockError: the file is damaged.
    """
    return {
        name: LockedStage(
            hashes(entry.get("deps")),
            hashes(entry.get("outs")),
            (entry.get("params") or {}).get("params.yaml") or {},
        )
        for name, entry in read_entries(root).items()
    }


def has_read(lock: Mapping[str, LockedStage], stage: str, path: str, digest: str) -> bool:
    """Whether a stage has last run on just this content of a path."""
    return stage in lock and lock[stage].deps.get(path) == digest


def read_settled_lock(root: Path) -> dict[str, LockedStage] | None:
    """As `read_lock`, beside a DVC that may be writing: None where that may have been a part."""
    written = written_at(root)
    if written is None or time.time_ns() - written < SETTLED_NS:
        return None
    found = read_whole_lock(root)
    return found if written_at(root) == written else None


def read_whole_lock(root: Path) -> dict[str, LockedStage] | None:
    """As `read_lock`; None where the file is damaged, or a part of one, and that shows."""
    try:
        found = read_lock(root)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    digests = [digest for stage in found.values() for digest in stage.outs.values()]
    return found if all(isinstance(digest, str) for digest in digests) else None


def written_at(root: Path) -> int | None:
    """When dvc.lock was last written to, in nanoseconds; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return (root / "dvc.lock").stat().st_mtime_ns
    return None


def only(text: str, stages: Collection[str]) -> str:
    """The text of a dvc.lock with the entries of these stages alone; empty without any."""
    kept, keep, found = [], True, False
    for line in text.splitlines(keepends=True):
        if name := re.match(r"  (\S+):\s*$", line):
            keep = name[1] in stages
            found = found or keep
        elif not line.startswith(" "):
            keep = True
        if keep:
            kept.append(line)
    return "".join(kept) if found else ""


def with_entry(text: str, stage: str, source: str) -> str:
    """The text of a dvc.lock with the entry of `stage` as another one has it.

    Where DVC would write it: in the place of the old one, else at the end.

    Raises:
        KeyError: `source` has no entry of that stage.
    """
    if not (entry := _entry(source, stage)):
        raise KeyError(stage)
    if not text:
        return only(source, [stage])
    old = _entry(text, stage)
    return text.replace(old, entry, 1) if old else text + entry


def without_entry(text: str, stage: str) -> str:
    """The text of a dvc.lock without the entry of `stage`."""
    entry = _entry(text, stage)
    return text.replace(entry, "", 1) if entry else text


def hashes(entries: list[dict[str, str]] | None) -> dict[str, str]:
    """Path -> md5 of a list of dependencies or outputs."""
    return {entry["path"]: entry["md5"] for entry in entries or [] if "md5" in entry}


def _entry(text: str, stage: str) -> str:
    """The lines of a stage's entry; empty where there is none."""
    lines, inside = [], False
    for line in text.splitlines(keepends=True):
        if not line.startswith("    "):
            inside = line.rstrip() == f"  {stage}:"
        if inside:
            lines.append(line)
    return "".join(lines)
