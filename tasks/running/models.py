"""What the stages that train or run models share: where to compute, and model folders on disk."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from preferences.reader import read_rows
from preferences.schemas import PROMPTS
from rlhf.chat import TokenizerError, encode_prompt
from rlhf.compute import (
    Compute,
    choose_device,
    give_back_freed_memory,
    keep_all_freed_memory,
    keep_freed_memory,
    make_deterministic,
)
from rlhf.model_folders import ModelFolderError, save_model
from rlhf.positions import PositionsError
from rlhf.seeding import Seeds
from rlhf.stopping import TrainingStopped
from rlhf.templates import TemplateError
from tasks.params.loading import RunParams
from tasks.running.outcome import StageEnd, Status
from tasks.running.progress import say_left_out
from tasks.running.stage import Stage
from tasks.running.staging import write_manifest

ERRORS: Mapping[type[Exception], Status] = {
    ModelFolderError: "bad_input",
    PositionsError: "bad_input",
    TemplateError: "bad_input",
    TokenizerError: "bad_input",
    TrainingStopped: "stopped",
}
"""How the library's errors end a stage."""

NO_WEIGHT: Mapping[str, frozenset[str]] = {
    "run": frozenset({"threads", "generation"}),
    "base": frozenset({"chat_template_args"}),
    "sft": frozenset({"recompute_layers"}),
    "reward": frozenset({"recompute_layers", "probes", "over_optimisation", "min_fresh_accuracy"}),
    "ppo": frozenset({"recompute_layers"}),
}
"""Section -> keys that change no weight: how fast it runs, in how much memory, what may end a
round, and what other files of the folder show (the chat template has its arguments)."""

LATER: Mapping[str, Mapping[str, Any]] = {
    "run": {"processes": 1, "sharded": False, "stored_precision": "float32"},
    "sft": {"heldout_fraction": 0.0},
    "reward": {"model": None, "packing": False},
    "ppo": {
        "packing": False,
        "rewards": {"function": None, "function_weight": 1.0, "function_seconds": 60.0},
        "rollouts": "local",
        "importance_cap": 2.0,
    },
}
"""Section -> keys that came after models had been recorded, with their defaults. A manifest has
them only where they differ: the same training then still writes the same manifest."""


def start_compute(run: RunParams, *, training: bool = False) -> Compute:
    """Fix threads and determinism, silence the libraries' own progress bars.

    A stage that is `training` on a CPU keeps the memory of each step for the next.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    try:
        device = choose_device(run.device)
    except ValueError as error:
        raise StageEnd("bad_input", str(error)) from None
    make_deterministic(run.threads)
    if run.sharded:
        give_back_freed_memory()
    elif training and device.type == "cpu":
        keep_all_freed_memory()
    else:
        keep_freed_memory()
    return Compute(device, run.precision)


def seeds_of(stage: Stage) -> Seeds:
    """The stage's random streams; each round has its own."""
    seeds = Seeds(stage.params.run.seed)
    return seeds if stage.round_key is None else Seeds(seeds.named("round", stage.round_key))


def write_model(
    stage: Stage,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: str,
    changed: Collection[str] = (),
) -> Path:
    """Write a model with its tokenizer to the staging folder of `path`; the manifest comes last.

    `changed` names the weights that an adapter changed, if one was merged into the model.
    """
    folder = stage.staging.directory(path)
    save_model(model, folder, stage.params.run.stored_precision, changed)
    tokenizer.save_pretrained(folder)
    return folder


def seal_model(stage: Stage, folder: Path) -> None:
    """Write the manifest of a complete model folder, without what changes no weight."""
    params = {
        section: {key: value for key, value in values.items() if key not in NO_WEIGHT[section]}
        if section in NO_WEIGHT
        else values
        for section, values in stage.own_params.items()
    }
    params = {
        section: _without_later(values, LATER.get(section, {}))
        for section, values in params.items()
    }
    write_manifest(folder, params=params, inputs=stage.inputs)


def _without_later(values: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The values without later keys at their defaults."""
    kept = {}
    for key, value in values.items():
        if isinstance(later.get(key), Mapping):
            kept[key] = _without_later(value, later[key])
        elif key not in later or value != later[key]:
            kept[key] = value
    return kept


def load_prompts(path: Path) -> list[dict[str, Any]]:
    """Rows of a prompts file: `prompt_id` and `prompt`."""
    return read_rows(path, PROMPTS)


def encode_prompts(
    rows: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, max_tokens: int
) -> tuple[list[Mapping[str, Any]], list[list[int]], int]:
    """Prompts within the limit, their token ids, and how many were left out as too long.

    Raises:
        StageEnd: no prompt is left.
    """
    encoded = [(row, encode_prompt(tokenizer, row["prompt"])) for row in rows]
    kept = [(row, ids) for row, ids in encoded if len(ids) <= max_tokens]
    if not kept:
        raise StageEnd("bad_input", f"none of {len(rows)} prompts has at most {max_tokens} tokens")
    too_long = len(encoded) - len(kept)
    say_left_out(
        too_long, len(rows), "prompts", f"more than {max_tokens} tokens (max_prompt_tokens)"
    )
    return [row for row, _ in kept], [ids for _, ids in kept], too_long
