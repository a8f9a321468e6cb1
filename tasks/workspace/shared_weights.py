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
from collections.abc import Iterator
from pathlib import Path

from tasks.workspace.dvc_cache import cache_folder, md5
from tasks.workspace.dvc_lockfile import DAMAGED_LOCK, read_lock

WORTH_IT = 1 << 20
"""Bytes from which a file of MLflow's is linked."""

LARGE = 1 << 26
"""Bytes from which an output's file is linked: 64 MiB, 16 million weights in float32."""


def share_outputs(root: Path) -> int:
    """Link the large files of the outputs in `dvc.lock` to DVC's objects; how many bytes it freed.

    Only where no stage can publish meanwhile. DVC hashes a linked file once more, the next time
    that it looks. What is damaged is left to those who cannot do without it.
    """
    weights = [path for path in (root / "models").rglob("*.safetensors") if path.is_file()]
    if not any(path.stat().st_size >= LARGE for path in weights):
        return 0  # Reading dvc.lock takes a tenth of a second.
    try:
        lock = read_lock(root)
    except DAMAGED_LOCK:
        return 0
    cache = cache_folder(root)
    return sum(
        share_with_cache(root / path, cache, digest, least=LARGE)
        for locked in lock.values()
        for path, digest in locked.outs.items()
    )


def share_with_cache(folder: Path, cache: Path, digest: str, *, least: int = WORTH_IT) -> int:
    """Link the large files of a folder to DVC's objects; how many bytes that freed.

    A file stays where it or DVC's object is not what DVC's list says, and so does everything where
    the two lie on different file systems.

    Args:
        folder: an output, or where MLflow keeps its files.
        cache: of DVC, as `cache_folder` has it.
        digest: DVC's hash of that output.
        least: bytes from which a file is linked.
    """
    freed = 0
    for path, object_md5 in _files(cache, digest):
        copy, kept = folder / path, cache / object_md5[:2] / object_md5[2:]
        with contextlib.suppress(OSError):
            size = copy.stat().st_size
            if size < least or copy.samefile(kept):
                continue
            # Beside the folder: in it, one more file that a kill left would change the output.
            link = folder.with_name(f".{folder.name}.linking")
            link.unlink(missing_ok=True)
            os.link(kept, link)
            # Both are read: a damaged object must not replace the copy that could mend it.
            if {md5(copy), md5(kept)} == {object_md5}:
                link.replace(copy)
                freed += size
            link.unlink(missing_ok=True)
    return freed


def _files(cache: Path, digest: str) -> Iterator[tuple[str, str]]:
    """Path below an output and md5 of its files, from the list that DVC keeps of a folder."""
    listed = cache / digest[:2] / digest[2:]
    if not digest.endswith(".dir") or not listed.is_file():
        return
    with contextlib.suppress(ValueError, KeyError, TypeError):  # Damaged.
        for file in json.loads(listed.read_text(encoding="utf-8")):
            yield file["relpath"], file["md5"]
