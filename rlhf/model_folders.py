"""Model folders in Hugging Face format, and the one error for folders that are not.

Only safetensors: pickled weights are never read, and no code that lies in a folder is run.
"""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

_POINTER = b"version https://git-lfs"
_NO_LIMIT = 2**62
"""Bytes of a file of weights."""

FAILURES = (
    OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError,
    AssertionError, ImportError,
)  # fmt: skip
"""What the library raises where it cannot load a folder: the latter two where config.json has a
wrong value, or asks for a package that is not there (flash-attn, timm)."""


class ModelFolderError(ValueError):
    """A folder that was given as a model does not hold one."""


def require_model_folder(folder: Path) -> None:
    """Raise ModelFolderError unless the folder looks like a model in Hugging Face format."""
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such model folder")
    if (folder / "adapter_config.json").is_file():
        # Beside weights, too: transformers would put the adapter on them, merged or not.
        raise ModelFolderError(
            f"{folder}: holds an adapter (adapter_config.json), which is no model by itself; merge "
            "it into its base model (peft: merge_and_unload), save that in another folder and name "
            "it; where these weights are the merged ones, remove adapter_*"
        )
    if not (folder / "config.json").is_file():
        raise ModelFolderError(
            f"{folder}: not a model folder in Hugging Face format (no config.json)"
        )
    _require_known_format(folder)
    if not list(folder.glob("*.safetensors")):
        raise ModelFolderError(
            f"{folder}: no weights in safetensors format (*.safetensors); pickled ones "
            "(pytorch_model.bin) could run code and are never read: load them once where you trust "
            "them, and write them with save_pretrained"
        )


def _require_known_format(folder: Path) -> None:
    """The architecture is one that transformers has, and the weights are plain numbers."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = config.get("model_type")
    except (ValueError, AttributeError):
        raise ModelFolderError(
            f"{folder}: cannot be loaded: config.json is no JSON object"
        ) from None
    if kind not in CONFIG_MAPPING_NAMES:
        own = "it needs code of its own (auto_map), and code in a model's folder is never run; "
        raise ModelFolderError(
            f"{folder}: cannot be loaded: {own if 'auto_map' in config else ''}"
            f"model_type is {kind!r}, which transformers does not have"
        )
    if config.get("quantization_config"):
        raise ModelFolderError(
            f"{folder}: its weights are quantised (quantization_config), so they cannot be "
            "trained; name the folder of the full weights"
        )


def require_weights(folder: Path) -> None:
    """Raise ModelFolderError where a file of weights is damaged, by its header alone."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            with path.open("rb") as file:
                pointer = file.read(len(_POINTER)) == _POINTER
            reason = (
                "a pointer of Git LFS: `git lfs pull` fetches the weights" if pointer else error
            )
            raise ModelFolderError(f"{path}: no file of weights: {reason}") from None


def is_reward_model(folder: Path) -> bool:
    """Whether the folder holds a reward model of ours (its normaliser is in the config)."""
    require_model_folder(folder)
    return '"score_std"' in (folder / "config.json").read_text(encoding="utf-8")


@contextlib.contextmanager
def loading(folder: Path) -> Iterator[None]:
    """A library's error on a folder that it cannot load becomes one line that names the folder."""
    try:
        yield
    except StrictDataclassError as error:
        # What the value should be is on its second line.
        reason = " ".join(str(error).split())
        raise ModelFolderError(f"{folder}: cannot be loaded: {reason}") from error
    except FAILURES as error:
        # What some packages are needed for is behind an empty line.
        said = (line for line in str(error).splitlines() if line.strip())
        reason = next(said, type(error).__name__)
        raise ModelFolderError(f"{folder}: cannot be loaded: {reason}") from error


def save_model(
    model: PreTrainedModel,
    folder: Path,
    stored: Literal["float32", "bfloat16"] = "float32",
    changed: Collection[str] = (),
) -> None:
    """Write a model in Hugging Face format, without the version of the library that wrote it.

    Args:
        model: stays as it is.
        folder: holds no other model yet.
        stored: in bfloat16 each weight is rounded to 8 bits on its way to the file, which is half
            as large.
        changed: names of the weights that training has changed, if not all. The others then go
            into a file of their own, the same for every model that shares them, so that a store
            which knows files by their content keeps it once.
    """
    weights = dict(model.state_dict() if stored == "float32" else _rounded(model.state_dict()))
    if not (changed and _saved_apart(model, folder, weights, changed)):
        model.save_pretrained(folder, state_dict=weights)
    for path in (folder / "config.json", folder / "generation_config.json"):
        if path.is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
            config.pop("transformers_version", None)
            if stored != "float32" and "dtype" in config:
                config["dtype"] = stored
            text = json.dumps(config, indent=2, sort_keys=True)
            path.write_text(text + "\n", encoding="utf-8")


def _saved_apart(
    model: PreTrainedModel, folder: Path, weights: Mapping[str, Tensor], changed: Collection[str]
) -> bool:
    """Write what was not changed and what was as two shards with their index, where that can be."""
    places = {weights[name].data_ptr() for name in changed}
    halves = [
        {name: weight for name, weight in weights.items() if (weight.data_ptr() in places) is new}
        for new in (False, True)
    ]
    if not all(halves):
        return False
    shards = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    shard_of: dict[str, str] = {}
    kept, size = 0, 0
    for half, shard in zip(halves, shards, strict=True):
        # By another name until both are there: save_pretrained removes shards of other calls.
        model.save_pretrained(folder, state_dict=half, max_shard_size=_NO_LIMIT)
        written = (folder / SAFE_WEIGHTS_NAME).rename(folder / f"written-{shard}")
        names, bytes_of_them = _contents(written)
        shard_of |= dict.fromkeys(names, shard)
        kept, size = kept + len(names), size + bytes_of_them
    apart = kept == len(shard_of)
    for shard in shards:
        if apart:
            (folder / f"written-{shard}").rename(folder / shard)
        else:  # The format has one weight for several of the model's, of both halves.
            (folder / f"written-{shard}").unlink()
    if apart:
        index = {"metadata": {"total_size": size}, "weight_map": shard_of}
        text = json.dumps(index, indent=2, sort_keys=True)
        (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(text + "\n", encoding="utf-8")
    return apart


def _contents(path: Path) -> tuple[list[str], int]:
    """Names of the weights in a safetensors file, and how many bytes they take."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found = {name: entry for name, entry in header.items() if name != "__metadata__"}
    ends = (end - start for start, end in (entry["data_offsets"] for entry in found.values()))
    return list(found), sum(ends)


def _rounded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in bfloat16; those that share their numbers, as tied embeddings do, still do."""
    cast: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    found = {}
    for name, weight in weights.items():
        place = (weight.data_ptr(), tuple(weight.shape))
        if weight.is_floating_point():
            found[name] = cast.setdefault(place, weight.bfloat16())
        else:
            found[name] = weight
    return found
