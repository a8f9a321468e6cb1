"""The ids with a meaning of their own: the end of a response, other ends, and padding.

No mask is made from any of them (statement 1 of docs/correctness.md). So it does not matter which
token fills rows up, nor whether the tokenizer has one for it (GPT-2 has none, SmolLM2's is its end
token, and people add some that the model has no embedding for): it is always the end token.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from rlhf.chat import end_id
from rlhf.model_folders import ModelFolderError, loading

GENERATION = "generation_config.json"
"""Where Hugging Face keeps the ids at which generation stops."""


class SpecialIds(NamedTuple):
    """What generation, padding and scoring have to know of a vocabulary."""

    eos: int
    """Ends a response that is encoded for training and scoring."""
    pad: int
    """Fills rows up where a mask is false: any id that the model has."""
    others: tuple[int, ...] = ()
    """Ends a sampled response, too: Llama 3 has three such ids."""

    @property
    def stops(self) -> tuple[int, ...]:
        """Every id at which generation stops."""
        return (self.eos, *self.others)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> SpecialIds:
    """Those that a tokenizer knows by itself, its own end token among them."""
    end, own = end_id(tokenizer), tokenizer.eos_token_id
    return SpecialIds(eos=end, pad=end, others=() if own in (None, end) else (own,))


def load_special_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> SpecialIds:
    """Those of a tokenizer, and the ids at which the model in the folder is to stop.

    Raises:
        ModelFolderError: a file of the folder cannot be read.
    """
    tokens = special_ids(tokenizer)
    with loading(folder):
        known = dict.fromkeys([*tokens.stops, *_stops_of(folder)])
    return tokens._replace(others=tuple(known)[1:])


def write_stops(folder: Path, tokens: SpecialIds) -> None:
    """Have whoever loads the folder (transformers, vLLM, our own server) stop where we do."""
    if set(_stops_of(folder)) == set(tokens.stops):
        return
    path = folder / GENERATION
    config = json.loads(path.read_text(encoding="utf-8"))
    # With this mark, transformers would take the id of config.json instead.
    config.pop("_from_model_config", None)
    config["eos_token_id"] = list(tokens.stops) if tokens.others else tokens.eos
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _stops_of(folder: Path) -> Iterator[int]:
    """One id, several, or none; in a folder without the one file the other says it.

    Ids that the model does not have stop nothing, as in transformers.
    """
    model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path = folder / GENERATION
    path = path if path.is_file() else folder / "config.json"
    named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    ids = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(each, int) for each in ids):
        found = json.dumps(named)
        raise ModelFolderError(f"{path}: eos_token_id is {found}, expected an id or a list of ids")
    size = (model.get("text_config") or model).get("vocab_size") or sys.maxsize
    yield from (each for each in ids if 0 <= each < size)
