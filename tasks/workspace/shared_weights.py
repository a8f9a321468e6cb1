"""Makes copies of weights links to those in DVC's cache: the same bytes, stored once.

MLflow's copies become links, and so do large outputs, of which there would be one copy here and one
in the cache. Nothing writes into any of them: objects of the cache are read-only and named by their
content, what MLflow has logged stays as it is, and a stage replaces its outputs, as DVC does.
Removing one of the links leaves the others.

A link has a price. What damages the bytes on the disk damages all of them, so that `make doctor`
finds no good copy and the stage has to run again. Outputs below `LARGE` are made again in minutes
and need little room: they stay copies, and each mends the other.
"""

import contextlib
import json
import os
from configparser import Error as ConfigError
from pathlib import Path
from uuid import uuid4

from tasks.workspace.dvc_cache import cache_folder, md5
from tasks.workspace.dvc_lockfile import read_whole_lock
from tasks.workspace.held import take
from tasks.workspace.work_folder import STAGE_LOCK

WORTH_IT = 1 << 20
"""Bytes from which a file of MLflow's is linked."""

LARGE = 1 << 26
"""Bytes from which an output's file is linked: 64 MiB, 16 million weights in float32."""

PLACES = ("data", "models", "results")
"""Where outputs lie."""

DRAFTS = Path(".work") / "linking"
"""Where links are made, before they replace a copy."""


def share_idle_outputs(root: Path) -> int:
    """As `share_outputs`, unless a stage runs here: then it, or who started it, links them."""
    (root / STAGE_LOCK).parent.mkdir(exist_ok=True)
    if (lock := take(root / STAGE_LOCK)) is None:
        return 0
    with lock:
        return share_outputs(root)


def share_outputs(root: Path) -> int:
    """Link the large files of the outputs in `dvc.lock` to DVC's objects; how many bytes it freed.

    For the stage that holds the workspace: no other may publish meanwhile. DVC hashes a linked file
    once more, the next time that it looks. What is damaged is left to those who cannot do without.
    """
    if not any(_is_large(path) for place in PLACES for path in (root / place).rglob("*")):
        return 0  # Reading dvc.lock takes a tenth of a second.
    lock = read_whole_lock(root) or {}
    try:
        cache = cache_folder(root)
    except ConfigError:
        return 0
    return sum(
        share_with_cache(root / path, cache, digest, drafts=root / DRAFTS, least=LARGE)
        for locked in lock.values()
        for path, digest in locked.outs.items()
    )


def share_with_cache(
    folder: Path, cache: Path, digest: str, *, drafts: Path, least: int = WORTH_IT
) -> int:
    """Link the large files of a folder to DVC's objects; how many bytes that freed.

    A file stays where it or DVC's object is not what DVC's list says, and so does everything where
    the places do not lie on one file system.

    Args:
        folder: an output, or where MLflow keeps its files.
        cache: of DVC, as `cache_folder` has it.
        digest: DVC's hash of that output.
        drafts: where links are made: in no output, which one that a kill left would change.
        least: bytes from which a file is linked.
    """
    freed = 0
    for path, object_md5 in _files(cache, digest):
        copy, kept = folder / path, cache / object_md5[:2] / object_md5[2:]
        with contextlib.suppress(OSError):
            size = copy.stat().st_size
            if size < least or copy.samefile(kept):
                continue
            if _linked(copy, kept, object_md5, drafts):
                freed += size
    return freed


def _is_large(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.is_file() and path.stat().st_size >= LARGE
    return False


def _linked(copy: Path, kept: Path, object_md5: str, drafts: Path) -> bool:
    """Whether a copy could be replaced by a link to the object."""
    drafts.mkdir(parents=True, exist_ok=True)
    link = drafts / uuid4().hex
    os.link(kept, link)  # First: where that cannot be, nothing needs to be read.
    try:
        # Both are read: a damaged object must not replace the copy that could mend it.
        same = {md5(copy), md5(link)} == {object_md5}
        if same:
            link.replace(copy)
    finally:
        link.unlink(missing_ok=True)
    return same


def _files(cache: Path, digest: str) -> list[tuple[str, str]]:
    """Path below an output and md5 of its files, from the list that DVC keeps of a folder."""
    listed = cache / digest[:2] / digest[2:]
    if not digest.endswith(".dir") or not listed.is_file():
        return []
    try:
        files = json.loads(listed.read_text(encoding="utf-8"))
        return [(str(file["relpath"]), str(file["md5"])) for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        return []
