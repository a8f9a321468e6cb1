"""Checkpoints on disk: whole or not at all, and verified before they are trusted.

A checkpoint is a folder `step-00000012`:

    tensors.safetensors   every tensor of the state, tied ones once
    parts-0.safetensors   the first process's rows of the tensors that are divided, if any are
    parts-1.safetensors   those of the second, and so on
    state.json            the rest of the state, with the names of the tensors in their places
    manifest.json         sizes and sha256 of all these, the step, and the caller's facts

Every process of a computation saves, and writes its own parts; all else is the first's.

It is written as `.staging`, flushed, described by its manifest, flushed again and renamed. A kill
at any moment leaves the older checkpoints and at most a `.staging`, which the next save replaces.
Its bytes are hashed once when it is written, and once more when a training resumes from it; which
older ones may go is read off names and sizes.
Nothing is pickled: a checkpoint can hold numbers, strings and tensors, and no code.
"""

import errno
import itertools
import json
import os
import random
import re
import shutil
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf import distributed
from rlhf.divided import Parts, is_divided, part
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
PARTS = "parts-{}.safetensors"
PART = "part-"
"""What the name of a divided tensor begins with."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint that has been read."""

    step: int
    state: dict[str, Any]


def save_checkpoint(
    folder: Path, step: int, state: Mapping[str, Any], facts: Mapping[str, Any]
) -> Path:
    """Write the state of a training run after `step` steps; returns the checkpoint's folder.

    Every process calls it, and returns when the checkpoint is there. Older checkpoints go once
    `KEPT` whole ones are newer than they are.

    Args:
        folder: where the checkpoints of one training are, and no other's.
        step: 0 or more.
        state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.
        facts: what the manifest records beside sizes and hashes, JSON.

    Raises:
        TypeError: the state holds something else.
        OSError, SafetensorError: it could not be written; older checkpoints are as they were. The
            first process raises it where another could not write, and the others end.
    """
    target, staging = folder / f"step-{step:08d}", folder / STAGING
    first = distributed.rank() == 0
    if distributed.any_of(first and _is_there(target)):
        return target
    if first:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    distributed.meet()
    try:
        _write_together(staging, state)
        if first:
            facts = {"step": step, "files": describe_files(staging), **facts}
            write_manifest(staging, facts)
            flush_all(staging)
    except (OSError, SafetensorError):
        if first:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    if first:
        staging.replace(target)
        flush(folder)
        _rotate(folder)
    distributed.meet()
    return target


def _is_there(target: Path) -> bool:
    """Whether it has been written before; a damaged one goes."""
    if target.exists():
        try:
            _verified(target)
        except DamagedError:
            shutil.rmtree(target)
            return False
        return True
    return False


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

    A model with dropout in training mode would draw from torch's. Those of GPUs are asked where
    this process computes on one: to ask takes memory of each, and may fail.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore the global generators to what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_initialized():
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
    if path.name != f"step-{step:08d}" or set(files) != {TENSORS, STATE, *_parts_in(files)}:
        raise DamagedError(f"{path / MANIFEST}: describes step {step} with {sorted(files)}")
    verify_files(path, files, hashes=hashes)
    return path


def _parts_in(files: Container[str]) -> list[str]:
    """The files of the processes, in their order; none where nothing was divided."""
    return list(itertools.takewhile(files.__contains__, map(PARTS.format, itertools.count())))


def _read(path: Path) -> Checkpoint:
    files = {file.name for file in path.iterdir()}
    tensors: dict[str, Tensor | Parts] = dict(load_file(path / TENSORS))
    processes = [load_file(path / name) for name in _parts_in(files)]
    for name in processes[0] if processes else ():
        tensors[name] = Parts(tuple(parts[name] for parts in processes))
    packed = json.loads((path / STATE).read_text(encoding="utf-8"))
    return Checkpoint(int(path.name.removeprefix("step-")), _unpack(packed, tensors))


def _write_together(folder: Path, state: Mapping[str, Any]) -> None:
    """Write, and return once all processes have; the first knows why one of them could not."""
    failed: OSError | SafetensorError | None = None
    try:
        _write(folder, state)
    except (OSError, SafetensorError) as error:
        failed = error
    numbers = distributed.gather(torch.tensor([_error_number(failed)])).tolist()
    if not any(numbers):
        return
    if distributed.rank() > 0:
        raise distributed.LostProcessError(f"{folder}: could not be written") from failed
    if failed is not None:
        raise failed
    place = next(place for place, number in enumerate(numbers) if number)
    path = folder / PARTS.format(place)
    raise OSError(numbers[place], os.strerror(numbers[place]), str(path))


def _error_number(error: OSError | SafetensorError | None) -> int:
    """What the system calls the error, 0 for none; safetensors says it in words."""
    if error is None:
        return 0
    said = re.search(r"os error (\d+)", str(error))
    return getattr(error, "errno", None) or (int(said[1]) if said else errno.EIO)


def _write(folder: Path, state: Mapping[str, Any]) -> None:
    tensors: dict[str, Tensor] = {}
    packed = _pack(state, tensors, {})
    parts = {name: tensor for name, tensor in tensors.items() if name.startswith(PART)}
    if parts:
        save_file(parts, folder / PARTS.format(distributed.rank()))
        flush(folder / PARTS.format(distributed.rank()))
    if distributed.rank() == 0:
        save_file({k: v for k, v in tensors.items() if k not in parts}, folder / TENSORS)
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
        return {"tensor": _pack_tensor(value, tensors, names)}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__}: {value!r:.100}")


def _pack_tensor(value: Tensor, tensors: dict[str, Tensor], names: dict[Any, str]) -> str:
    """The tensor's name, which is the same in every process although each has other rows."""
    mine, storage = part(value), part(value).untyped_storage()
    place = storage.data_ptr(), mine.storage_offset()
    memory = (mine.device, *place, mine.dtype, mine.shape, mine.stride())
    if memory not in names or storage.data_ptr() == 0:
        names[memory] = f"{PART if is_divided(value) else ''}{len(tensors)}"
        if distributed.rank() > 0 and not is_divided(value):
            mine = mine.new_empty(0)
        elif storage.nbytes() != mine.nbytes:
            mine = mine.clone()
        tensors[names[memory]] = mine.detach().cpu().contiguous()
    return names[memory]


def _unpack(value: Any, tensors: Mapping[str, Tensor | Parts]) -> Any:
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
