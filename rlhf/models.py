"""Policies and tokenizers from folders in Hugging Face format."""

from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf.chat import check_tokenizer
from rlhf.model_folders import (
    ModelFolderError,
    is_reward_model,
    loading,
    require_model_folder,
)

VOCABULARIES = ("tekken.json", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Files of a tokenizer's words, beside those that its class names."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer, checked for an end token."""
    tokenizer = read_tokenizer(folder)
    check_tokenizer(tokenizer, source=str(folder))
    return tokenizer


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer.

    Where a folder holds none, transformers makes one up for some models (BERT, RoBERTa, Qwen 2)
    that knows no word: every text would be the same.

    Raises:
        ModelFolderError: the folder holds no tokenizer.
    """
    require_model_folder(folder)
    with loading(folder):
        loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer = cast(PreTrainedTokenizerBase, loaded)
    # Those of bytes or characters have no such files.
    if own := dict(tokenizer.vocab_files_names):
        files = sorted({*VOCABULARIES, *own.values()})
        if not any((folder / name).is_file() for name in files):
            raise ModelFolderError(
                f"{folder}: holds no tokenizer (none of {', '.join(files)}); save it beside the "
                "weights: tokenizer.save_pretrained"
            )
    return tokenizer


def load_policy(folder: Path, device: torch.device) -> PreTrainedModel:
    """A causal language model in float32, in evaluation mode: dropout stays off everywhere."""
    require_model_folder(folder)
    if is_reward_model(folder):
        raise ModelFolderError(f"{folder}: expected a policy, found a reward model")
    model, missing = load_weights(AutoModelForCausalLM, folder)
    if missing:
        raise ModelFolderError(f"{folder}: weights are missing: {', '.join(missing)}")
    return model.to(device).eval()


def load_weights(kind: Any, folder: Path, **config: Any) -> tuple[PreTrainedModel, list[str]]:
    """A model in float32 and the names of the weights that the folder does not hold.

    transformers draws those at random and only warns; what that means is for the caller to decide.
    """
    with loading(folder):
        model, report = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **config,
        )
    for name, found, expected in sorted(report["mismatched_keys"]):
        shapes = f"has shape {tuple(found)}, expected {tuple(expected)}"
        raise ModelFolderError(f"{folder}: {name} {shapes}")
    model.get_input_embeddings().padding_idx = None  # Else that row, often the end's, never learns.
    return cast(PreTrainedModel, model), sorted(report["missing_keys"])
