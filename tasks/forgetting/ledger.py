"""The tombstones, and the log of what was removed when: both without what they are about."""

import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from preferences.withdrawals import Tombstone
from rlhf.manifests import flush
from tasks.workspace.withdrawn import LOG, WITHDRAWN, tombstones_in


def salt_of(root: Path) -> str:
    """The salt of the repository's tombstones; a new one before the first."""
    for name in WITHDRAWN:
        if known := tombstones_in(root, name):
            return min(one.salt for one in known)
    return secrets.token_hex(16)


def missing(root: Path, name: str, wanted: Iterable[Tombstone]) -> list[Tombstone]:
    """Those of `wanted` that the file does not have yet, sorted."""
    return sorted(set(wanted) - tombstones_in(root, name))


def add(root: Path, name: str, tombstones: Iterable[Tombstone]) -> None:
    """Add to the file, on disk when this returns; a reader sees the old one or the new one."""
    path = root / name
    before = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    lines = [f"{line}\n" for line in before.splitlines()] + [one.line() for one in tombstones]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text("".join(lines), encoding="utf-8")
    flush(draft)
    draft.replace(path)
    flush(path.parent)


def log(root: Path, entry: Mapping[str, Any]) -> None:
    """Add an entry to the log, with the time; on disk when it returns."""
    at = datetime.now(tz=UTC).isoformat(timespec="seconds")
    (root / LOG).parent.mkdir(parents=True, exist_ok=True)
    with (root / LOG).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"at": at, **entry}) + "\n")
    flush(root / LOG)
