"""Outputs appear whole or not at all: written to a staging folder, then renamed into place."""

import errno
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf import manifests
from rlhf.manifests import (
    MANIFEST,
    DamagedError,
    describe_files,
    flush,
    flush_all,
    read_manifest,
    sha256,
    verify_files,
)

DRAFT, REPLACED = "publishing", "replaced"
"""Suffixes of drafts beside an output while it is published: `.policy.publishing`."""

PLACES = ("data", "models", "results", "reports")
"""Folders that outputs are in."""


class Staging:
    """A folder in which a stage's outputs are built before any of them is visible."""

    def __init__(self, root: Path, folder: Path):
        """Start with an empty folder; one stage runs at a time, so all drafts are leftovers."""
        self._root, self._folder = root, folder
        self._outputs: list[str] = []
        for draft in drafts(root):
            clear_draft(draft)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def file(self, path: str) -> Path:
        """Where to write an output file that is to appear at `path`."""
        self._outputs.append(path)
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def directory(self, path: str) -> Path:
        """Where to write an output folder that is to appear at `path`."""
        target = self.file(path)
        target.mkdir(exist_ok=True)
        return target

    def publish(self) -> list[Path]:
        """Bring every output beside its place, flushed to the disk; then rename all into place.

        If `.work` is on another file system than the outputs, they are copied.
        """
        published = [self._root / path for path in self._outputs]
        try:
            for path, target in zip(self._outputs, published, strict=True):
                target.parent.mkdir(parents=True, exist_ok=True)
                _bring(self._folder / path, _beside(target, DRAFT))
        except BaseException:  # For example a full disk: leave nothing half-copied on it.
            for target in published:
                _remove(_beside(target, DRAFT))
            raise
        for target in published:
            replaced = _beside(target, REPLACED)
            if target.is_dir():
                target.replace(replaced)
            _beside(target, DRAFT).replace(target)
            flush(target.parent)
            _remove(replaced)
        shutil.rmtree(self._folder)
        return published

    def discard(self) -> None:
        """Remove what was written and not published."""
        shutil.rmtree(self._folder, ignore_errors=True)


def drafts(root: Path) -> list[Path]:
    """What a stage that died while publishing left beside its outputs."""
    return [
        path
        for place in PLACES
        for ending in (DRAFT, REPLACED)
        for path in sorted((root / place).rglob(f".*.{ending}"))
    ]


def clear_draft(path: Path) -> None:
    """Remove a draft; put an earlier output back that the new one has not replaced yet."""
    target = path.with_name(path.stem.removeprefix("."))
    if path.suffix == f".{REPLACED}" and not target.exists():
        path.replace(target)
    _remove(path)


def write_manifest(
    folder: Path,
    *,
    params: Mapping[str, Any],
    inputs: Mapping[str, str],
) -> None:
    """Describe a model folder: its files with size and sha256, and what it was made from."""
    content = {
        "files": describe_files(folder),
        "inputs": dict(sorted(inputs.items())),
        "params": dict(params),
    }
    manifests.write_manifest(folder, content)


def verify_model(folder: Path) -> None:
    """Compare a model folder with its manifest.

    Raises:
        DamagedError: they differ; the message says how to restore the folder.
    """
    try:
        verify_checkpoint(folder)
    except DamagedError as error:
        raise DamagedError(
            f"{error}. To restore it: make doctor, then dvc checkout --force {folder}"
        ) from None


def model_hash(folder: Path) -> str:
    """The sha256 of a model folder's manifest: one name for weights, params and inputs."""
    return sha256(folder / MANIFEST)[:16]


def verify_checkpoint(folder: Path) -> None:
    """Compare a checkpoint, or a model folder, with its manifest, without loading it.

    Raises:
        DamagedError: they differ.
    """
    verify_files(folder, read_manifest(folder)["files"])


def write_json_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object per row, letters unescaped, keys in their order."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def write_history(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Per-step metrics as CSV; a metric that a step does not have stays empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(names)]
    lines += [",".join(_cell(row.get(name)) for name in names) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{ending}")


def _bring(source: Path, draft: Path) -> None:
    """Move a file or folder, across file systems where it has to be; flushed to the disk."""
    try:
        source.replace(draft)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if source.is_dir():
            shutil.copytree(source, draft)
        else:
            shutil.copyfile(source, draft)
    flush_all(draft)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.8g}"
