"""Whether a model's folder has all the files of its weights, by their names alone.

A download that was broken off leaves some of several files, each of them sound. The library finds
that where it loads them: of a reward model of others, hours after a run began.
"""

import json
from pathlib import Path

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What `transformers` looks for, in this order: one file, or the names of several."""


def missing_weights(folder: Path) -> str | None:
    """What is missing of the weights of a folder, in a sentence; None where nothing is."""
    index = folder / INDEX
    if (folder / WHOLE).is_file():
        return None
    if not index.is_file():
        return None if _named_otherwise(folder) else f"{folder}: holds neither {WHOLE} nor {INDEX}"
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        missing = sorted(name for name in named if not (folder / name).is_file())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{index}: cannot be read ({type(error).__name__}: {error})"
    if not missing:
        return None
    return (
        f"{folder}: {len(missing)} of {len(named)} files of its weights are missing, which "
        f"{INDEX} names: {missing[0]}{', ...' if missing[1:] else ''}; fetch the rest"
    )


def _named_otherwise(folder: Path) -> bool:
    """Whether config.json names the file of the weights itself."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # Said of config.json.
    return isinstance(config, dict) and config.get("transformers_weights") is not None
