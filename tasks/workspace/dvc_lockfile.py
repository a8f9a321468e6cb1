"""Reads `dvc.lock`: which hashes went into each stage and which came out."""

from collections.abc import Mapping
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


def hashes(entries: list[dict[str, str]] | None) -> dict[str, str]:
    """Path -> md5 of a list of dependencies or outputs."""
    return {entry["path"]: entry["md5"] for entry in entries or [] if "md5" in entry}
