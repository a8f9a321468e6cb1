"""Model folders in Hugging Face format, and the one error for folders that are not.

Only safetensors: pickled weights are never read, and no code that lies in a folder is run.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel


class ModelFolderError(ValueError):
    """A folder that was given as a model does not hold one."""


def require_model_folder(folder: Path) -> None:
    """Raise ModelFolderError unless the folder looks like a model in Hugging Face format."""
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such model folder")
    if not (folder / "config.json").is_file():
        raise ModelFolderError(
            f"{folder}: not a model folder in Hugging Face format (no config.json)"
        )
    if not list(folder.glob("*.safetensors")):
        raise ModelFolderError(f"{folder}: no weights in safetensors format (*.safetensors)")


def is_reward_model(folder: Path) -> bool:
    """Whether the folder holds a reward model of ours (its normaliser is in the config)."""
    require_model_folder(folder)
    return '"score_std"' in (folder / "config.json").read_text(encoding="utf-8")


@contextlib.contextmanager
def loading(folder: Path) -> Iterator[None]:
    """A library's error on a folder that it cannot load becomes one line that names the folder."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ModelFolderError(f"{folder}: cannot be loaded: {reason}") from error


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a model in Hugging Face format, without the version of the library that wrote it."""
    model.save_pretrained(folder)
    for path in (folder / "config.json", folder / "generation_config.json"):
        if path.is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
            config.pop("transformers_version", None)
            text = json.dumps(config, indent=2, sort_keys=True)
            path.write_text(text + "\n", encoding="utf-8")
