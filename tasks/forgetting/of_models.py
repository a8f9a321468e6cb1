"""Which files are a model's: without its tokenizer or config nobody can load it any more.

They are no data. `ana`, a word of a tokenizer, is nobody's name there; and which models were
trained on what has to go says the lineage.
"""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CONFIGS = ("config.json", "adapter_config.json")
WEIGHTS = ".safetensors"
ENDINGS = (WEIGHTS, ".json", ".txt", ".jinja", ".model")
MLFLOW = "MLmodel"
"""The file in the folder of a model that MLflow keeps, beside `model/` and `components/`."""
DEEPEST = 3
"""Folders from such a file of MLflow's down to the files of a tokenizer."""


def is_of_a_model(path: Path) -> bool:
    """Whether a file on disk is one of a folder in Hugging Face format, or of a model of MLflow."""
    if path.suffix not in ENDINGS and path.name != MLFLOW:
        return False
    if any((folder / MLFLOW).is_file() for folder in list(path.parents)[:DEEPEST]):
        return True
    named = any((path.parent / name).is_file() for name in CONFIGS)
    return named and any(path.parent.glob(f"*{WEIGHTS}"))


def listings(cache: Path) -> Iterator[tuple[Path, list[dict[str, str]]]]:
    """The lists of the folders in DVC's cache, with their entries: `relpath` and `md5`."""
    for listing in cache.glob("??/*.dir"):
        try:
            yield listing, json.loads(listing.read_text(encoding="utf-8"))
        except ValueError:  # Damaged, which `make doctor` says.
            continue


def objects_of_models(cache: Path) -> set[Path]:
    """The objects of DVC's cache that are files of models, of whichever commit."""
    found = set()
    for _, entries in listings(cache):
        files = {PurePosixPath(entry["relpath"]): entry["md5"] for entry in entries}
        weights = {path.parent for path in files if path.suffix == WEIGHTS}
        models = {path.parent for path in files if path.name in CONFIGS} & weights
        found |= {
            cache / md5[:2] / md5[2:]
            for path, md5 in files.items()
            if path.parent in models and path.suffix in ENDINGS
        }
    return found
