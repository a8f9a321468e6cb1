"""Outputs appear whole or not at all: written to a staging folder, then renamed into place."""

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


class Staging:
    """A folder in which a stage's outputs are built before any of them is visible."""

    def __init__(self, root: Path, folder: Path):
        """Start with an empty folder on the outputs' file system."""
        self._root, self._folder = root, folder
        self._outputs: list[str] = []
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
        """Flush every file to the disk and rename every output into place."""
        published = []
        for path in self._outputs:
            source, target = self._folder / path, self._root / path
            flush_all(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                shutil.rmtree(target)
            source.replace(target)
            flush(target.parent)
            published.append(target)
        shutil.rmtree(self._folder)
        return published

    def discard(self) -> None:
        """Remove what was written and not published."""
        shutil.rmtree(self._folder, ignore_errors=True)


def write_manifest(
    folder: Path,
    *,
    params: Mapping[str, Any],
    inputs: Mapping[str, str],
) -> None:
    """Describe a model folder: its files with size and sha256, and all it was made from."""
    content = {
        "files": describe_files(folder),
        "inputs": dict(sorted(inputs.items())),
        "params": dict(params),
    }
    manifests.write_manifest(folder, content)


def verify_model(folder: Path) -> None:
    """Compare a model folder with its manifest.

    Raises:
        DamagedError: they differ; the message says how the folder comes back.
    """
    try:
        verify_checkpoint(folder)
    except DamagedError as error:
        raise DamagedError(
            f"{error}. To get it back: make doctor, then dvc checkout --force {folder}"
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
    """One JSON object a row, letters as they are, keys in their order."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def write_history(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Per-step figures as CSV; a figure that a step does not have stays empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(names)]
    lines += [",".join(_cell(row.get(name)) for name in names) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.8g}"
