"""Manifests: sizes and sha256 of a folder's files, stored beside them; and the flush to disk.

Every library loads a tensor with a flipped bit without complaint, so weights are compared with
their manifest before they are read. The manifest carries a digest of itself, so that a flipped bit
in it is found as well. No torch here: data stages use it too.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
SEAL = "seal"
"""Last key of a manifest: the sha256 of the manifest's text without it."""


class DamagedError(ValueError):
    """A file is not what its manifest says; the message names it with both values."""


def sha256(path: Path) -> str:
    """The file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write `content` (JSON, keys in their order) and its digest as the manifest of a folder."""
    sealed = {**content, SEAL: _digest(content)}
    (folder / MANIFEST).write_text(_text(sealed), encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` was given.

    Raises:
        DamagedError: it is missing, or not byte for byte what was written.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes().decode("utf-8")
        content = json.loads(text)
        expected = content.pop(SEAL)
    except FileNotFoundError:
        raise DamagedError(f"{path}: expected a manifest, found no file") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: cannot be read ({type(error).__name__}: {error})") from None
    if (found := _digest(content)) != expected:
        raise DamagedError(f"{path}: expected sha256 {expected}, found {found}")
    if _text({**content, SEAL: expected}) != text:
        raise DamagedError(f"{path}: expected the layout that it was written in, found another")
    assert isinstance(content, dict)
    return content


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Path below `folder` -> size and sha256 of every file but the manifest itself."""
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def verify_files(
    folder: Path, files: Mapping[str, Mapping[str, Any]], *, hashes: bool = True
) -> None:
    """Compare a folder with what `describe_files` returned for it.

    Without `hashes` that is names and sizes, which takes no reading.

    Raises:
        DamagedError: the first file that is missing, unexpected or different.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedError(f"{path}: missing; its manifest lists it")
        if (size := path.stat().st_size) != expected["size"]:
            raise DamagedError(f"{path}: expected {expected['size']} bytes, found {size}")
        if hashes and (digest := sha256(path)) != expected["sha256"]:
            raise DamagedError(f"{path}: expected sha256 {expected['sha256']}, found {digest}")
    present = (path for path in sorted(folder.rglob("*")) if path.is_file())
    for path in present:
        name = path.relative_to(folder).as_posix()
        if path.name != MANIFEST and name not in files:
            raise DamagedError(f"{path}: its manifest does not list it")


def flush(path: Path) -> None:
    """Force a file to the disk, or a folder's list of names (after a rename in it)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_all(path: Path) -> None:
    """Force a file, or a folder with everything in it, to the disk."""
    for below in [*(path.rglob("*") if path.is_dir() else ()), path]:
        flush(below)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
