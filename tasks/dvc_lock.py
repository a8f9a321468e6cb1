"""Reads `dvc.lock`: which hashes went into each stage and which came out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML


@dataclass(frozen=True, slots=True)
class LockedStage:
    """One stage as DVC last recorded it."""

    deps: Mapping[str, str]
    """Path -> md5 (`.dir` at the end for a folder)."""
    outs: Mapping[str, str]


def read_lock(root: Path) -> dict[str, LockedStage]:
    """Stage name -> recorded hashes; empty where nothing has run yet."""
    path = root / "dvc.lock"
    if not path.exists():
        return {}
    record = YAML(typ="safe").load(path.read_text(encoding="utf-8")) or {}
    return {
        name: LockedStage(_hashes(entry.get("deps")), _hashes(entry.get("outs")))
        for name, entry in record.get("stages", {}).items()
    }


def _hashes(entries: list[dict[str, str]] | None) -> dict[str, str]:
    return {entry["path"]: entry["md5"] for entry in entries or [] if "md5" in entry}
