"""Makes MLflow's copies of weights links to those in DVC's cache: the same bytes, stored once less.

Nothing writes into either: objects of the cache are read-only and named by their content, and what
MLflow has logged stays as it is. (A link to the output in the workspace would let whoever changes
that file change MLflow's too.) Removing one of the two leaves the other.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tasks.workspace.dvc_cache import md5

WORTH_IT = 1 << 20
"""Bytes from which a file is linked."""


def share_with_cache(logged: Path, cache: Path, digest: str) -> int:
    """Link the large files of a logged model folder to DVC's objects; how many bytes that freed.

    A file that differs from DVC's stays, and so does everything where the two folders lie on
    different file systems.

    Args:
        logged: where MLflow keeps the files of an output.
        cache: of DVC, as `cache_folder` has it.
        digest: DVC's hash of that output.
    """
    freed = 0
    for path, object_md5 in _files(cache, digest):
        copy, kept = logged / path, cache / object_md5[:2] / object_md5[2:]
        with contextlib.suppress(OSError):
            size = copy.stat().st_size
            if size < WORTH_IT or copy.samefile(kept) or md5(copy) != object_md5:
                continue
            draft = copy.with_name(f".{copy.name}.draft")
            draft.unlink(missing_ok=True)
            os.link(kept, draft)
            draft.replace(copy)
            freed += size
    return freed


def _files(cache: Path, digest: str) -> Iterator[tuple[str, str]]:
    """Path below an output and md5 of its files, from the list that DVC keeps of a folder."""
    listed = cache / digest[:2] / digest[2:]
    if digest.endswith(".dir") and listed.is_file():
        for file in json.loads(listed.read_text(encoding="utf-8")):
            yield file["relpath"], file["md5"]
