"""Reads `dvc.lock`: which hashes went into each stage and which came out."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


@dataclass(frozen=True, slots=True)
class LockedStage:
    """One stage as DVC last recorded it."""

    deps: Mapping[str, str]
    """Path -> md5 (`.dir` at the end for a folder)."""
    outs: Mapping[str, str]


def read_entries(root: Path) -> dict[str, dict[str, Any]]:
    """Stage name -> its entry as it is in dvc.lock; empty where nothing has run yet."""
    path = root / "dvc.lock"
    if not path.exists():
        return {}
    record = YAML(typ="safe").load(path.read_text(encoding="utf-8")) or {}
    entries: dict[str, dict[str, Any]] = record.get("stages", {})
    return entries


def read_lock(root: Path) -> dict[str, LockedStage]:
    """Stage name -> recorded hashes; empty where nothing has run yet."""
    return {
        name: LockedStage(hashes(entry.get("deps")), hashes(entry.get("outs")))
        for name, entry in read_entries(root).items()
    }


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


def hashes(entries: list[dict[str, str]] | None) -> dict[str, str]:
    """Path -> md5 of a list of dependencies or outputs."""
    return {entry["path"]: entry["md5"] for entry in entries or [] if "md5" in entry}
