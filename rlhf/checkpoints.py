"""Checkpoints on disk: whole or not at all, and verified before they are trusted.

A checkpoint is a folder `step-00000012`:

    tensors.safetensors   every tensor of the state, tied ones once
    state.json            the rest of the state, with the names of the tensors in their places
    manifest.json         sizes and sha256 of the two, the step, and the caller's facts

It is written as `.staging`, flushed, described by its manifest, flushed again and renamed. A kill
at any moment leaves the older checkpoints and at most a `.staging`, which the next save replaces.
Its bytes are hashed once when it is written, and once more when a training resumes from it; which
older ones may go is read off names and sizes.
Nothing is pickled: a checkpoint can hold numbers, strings and tensors, and no code.
"""

import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf.manifests import (
    MANIFEST,
    DamagedError,
    describe_files,
    flush,
    flush_all,
    read_manifest,
    verify_files,
    write_manifest,
)

KEPT = 2
"""Whole checkpoints that a save leaves in place, its own included."""

TENSORS, STATE, STAGING = "tensors.safetensors", "state.json", ".staging"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint that has been read."""

    step: int
    state: dict[str, Any]


def save_checkpoint(
    folder: Path, step: int, state: Mapping[str, Any], facts: Mapping[str, Any]
) -> Path:
    """Write the state of a training run after `step` steps; returns the checkpoint's folder.

    Older checkpoints go once `KEPT` whole ones are newer than they are.

    Args:
        folder: where the checkpoints of one training are, and no other's.
        step: 0 or more.
        state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.
        facts: what the manifest records beside sizes and hashes, JSON.

    Raises:
        TypeError: the state holds something else.
        OSError, SafetensorError: it could not be written; older checkpoints are as they were.
    """
    target = folder / f"step-{step:08d}"
    if target.exists():
        try:
            return _verified(target)
        except DamagedError:
            shutil.rmtree(target)
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _write(staging, state)
        write_manifest(staging, {"step": step, "files": describe_files(staging), **facts})
        flush_all(staging)
    except (OSError, SafetensorError):
        shutil.rmtree(staging, ignore_errors=True)
        raise
    staging.replace(target)
    flush(folder)
    _rotate(folder)
    return target


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies, and a line for each newer one that does not."""
    skipped: list[str] = []
    for path in checkpoints(folder):
        try:
            return _read(_verified(path)), skipped
        except DamagedError as error:
            skipped.append(str(error))
    return None, skipped


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a training, newest first, damaged ones included."""
    return sorted(folder.glob("step-*"), reverse=True)


def random_states() -> dict[str, Any]:
    """The global generators of torch and Python. Our loops draw from named seeds; a layer may not.

    A model with dropout in training mode would draw from torch's.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore the global generators to what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    random.setstate(states["python"])


def _rotate(folder: Path) -> None:
    """Remove what is older than the newest `KEPT` whole checkpoints."""
    whole = 0
    for path in checkpoints(folder):
        if whole >= KEPT:
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            _verified(path, hashes=False)
        except DamagedError:
            continue
        whole += 1


def _verified(path: Path, *, hashes: bool = True) -> Path:
    manifest = read_manifest(path)
    files, step = manifest["files"], manifest["step"]
    if path.name != f"step-{step:08d}" or set(files) != {TENSORS, STATE}:
        raise DamagedError(f"{path / MANIFEST}: describes step {step} with {sorted(files)}")
    verify_files(path, files, hashes=hashes)
    return path


def _read(path: Path) -> Checkpoint:
    tensors = load_file(path / TENSORS)
    packed = json.loads((path / STATE).read_text(encoding="utf-8"))
    return Checkpoint(int(path.name.removeprefix("step-")), _unpack(packed, tensors))


def _write(folder: Path, state: Mapping[str, Any]) -> None:
    tensors: dict[str, Tensor] = {}
    packed = _pack(state, tensors, {})
    save_file(tensors, folder / TENSORS)
    (folder / STATE).write_text(json.dumps(packed) + "\n", encoding="utf-8")


def _pack(value: Any, tensors: dict[str, Tensor], names: dict[Any, str]) -> Any:
    """`value` as JSON; tensors go to `tensors`, the same memory under one name (`names`)."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        # Pairs, since the keys of an optimiser's state are numbers.
        return {"dict": [[key, _pack(inner, tensors, names)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(inner, tensors, names) for inner in value]}
    if isinstance(value, Tensor):
        memory = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if memory not in names or value.numel() == 0:
            names[memory] = str(len(tensors))
            own = value.untyped_storage().nbytes() == value.nbytes
            tensors[names[memory]] = (value if own else value.clone()).detach().cpu().contiguous()
        return {"tensor": names[memory]}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__}: {value!r:.100}")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {key: _unpack(inner, tensors) for key, inner in content}
        case _:
            items = [_unpack(inner, tensors) for inner in content]
            return items if kind == "list" else tuple(items)
