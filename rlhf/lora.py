"""Low-rank adapters (Hu et al. 2021), by way of `peft`.

    W' = W + (alpha / rank) B A        A: (rank, in) drawn at random, B: (out, rank) zero at first

The adapter goes into the model itself, which keeps its class and its names: whatever works on a
model works on one with an adapter. Switched off, it leaves the model that it was put on, so the
policy of PPO is its own reference. A model is published merged, in Hugging Face format and without
a trace of all this; the adapter alone lies beside it in `adapter`, as `peft` writes it. Importing
`peft` takes seconds, so only what uses an adapter does.
"""

import contextlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.lora_targets import check_targets, routers
from rlhf.model_folders import ModelFolderError
from rlhf.params.lora import LoraParams

ADAPTER = "adapter"
"""Folder of the adapter within that of the merged model."""

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
NAME = "default"
MARK = ".lora_"
"""Part of the names of an adapter's weights, and of no others."""
PREFIX = "base_model.model."
"""What `peft` puts before a weight's name on disk."""


@dataclass(frozen=True)
class Adapter:
    """An adapter apart from its model: `peft`'s config and the weights under its names."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    changed: frozenset[str]
    """Names of the weights of the merged model that are not those of the model below it."""

    def save(self, folder: Path) -> None:
        """Write the folder; `peft.PeftModel.from_pretrained` reads it."""
        folder.mkdir()
        text = json.dumps(self.config, indent=2, sort_keys=True)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
        save_file(self.weights, folder / WEIGHTS, metadata={"format": "pt"})


def add_adapter(
    model: PreTrainedModel,
    params: LoraParams,
    generator: torch.Generator,
    *,
    head: nn.Module | None = None,
) -> None:
    """Freeze a model and put a fresh adapter on it, which changes none of its outputs yet.

    `head`, a part of the model that is new (a reward model's), is trained whole beside it.

    Raises:
        ModelFolderError: `check_targets` refuses what `targets` names, or `peft` does.
    """
    check_targets(model, params.targets or (), head=head)
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 (takes seconds)

    config = LoraConfig(
        r=params.rank,
        lora_alpha=params.alpha,
        target_modules=params.targets or "all-linear",
        exclude_modules=routers(model) or None,
        task_type="CAUSAL_LM" if head is None else "SEQ_CLS",
    )
    try:
        with warnings.catch_warnings():
            # peft warns about every GPT-2 and then does the right thing.
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")
            inject_adapter_in_model(config, model, NAME)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ModelFolderError(f"lora.targets {params.targets}: {reason}") from None
    for name, weight in adapter_weights(model).items():
        # As nn.Linear draws its weights: uniform in ± 1 / sqrt(inputs). B stays at zero.
        if "lora_A" in name:
            bound = weight.shape[1] ** -0.5
            weight.data.copy_(torch.rand(weight.shape, generator=generator) * 2 * bound - bound)
    if head is not None:
        head.requires_grad_(True)
    model.eval()


def has_adapter(model: nn.Module) -> bool:
    """Whether `add_adapter` or `load_adapter` has put one on the model."""
    return getattr(model, "peft_config", None) is not None


def adapter_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of the model's adapter by name."""
    return {name: weight for name, weight in model.named_parameters() if MARK in name}


@contextlib.contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Inside it the model acts as before the adapter; one without an adapter is unaffected."""
    layers = [layer for _, layer in _adapted(model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def take_adapter(model: PreTrainedModel) -> Adapter:
    """Merge the adapter into the model's weights, leave a plain model, and return the adapter.

    Together with it comes what else was trained (the head of a reward model).
    """
    trained = {name: w for name, w in model.named_parameters() if w.requires_grad}
    config: dict[str, Any] = model.peft_config[NAME].to_dict()
    config = {
        key: sorted(value) if isinstance(value, set) else value for key, value in config.items()
    }
    whole = sorted({name.split(".")[0] for name in trained if MARK not in name})
    config |= {"inference_mode": True, "modules_to_save": whole or None}
    # Weights do not depend on the version of peft, so nothing that is written names it.
    config.pop("peft_version", None)
    weights = {
        PREFIX + name.replace(f".{NAME}", ""): weight.detach().cpu().clone().contiguous()
        for name, weight in trained.items()
    }
    changed = {name for name in trained if MARK not in name}
    # The inner one of two first, as experts with two weight tensors have them.
    for name, layer in reversed(_adapted(model)):
        layer.merge(safe_merge=True)
        within = name.replace(".base_layer", "")
        changed.add(f"{within}.{getattr(layer, 'parameter_name', 'weight')}")
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    del model.peft_config
    model.requires_grad_(True)
    return Adapter(config, weights, frozenset(changed))


def merged(model: PreTrainedModel, base: PreTrainedModel, params: LoraParams) -> PreTrainedModel:
    """A plain model with what the adapter adds now; the one that is in training stays as it is.

    Args:
        model: carries the adapter.
        base: another copy of the model that it was put on, which becomes the result.
        params: of the adapter.
    """
    add_adapter(base, params, torch.Generator())
    theirs = adapter_weights(model)
    for name, weight in adapter_weights(base).items():
        weight.data.copy_(theirs[name])
    take_adapter(base)
    return base


def load_adapter(model: PreTrainedModel, folder: Path, params: LoraParams) -> None:
    """Put the adapter of a folder on the model that it was trained on, to train it further.

    Raises:
        ModelFolderError: there is no adapter, or its shape is not the one `params` ask for.
    """
    if not (folder / WEIGHTS).is_file() or not (folder / CONFIG).is_file():
        raise ModelFolderError(
            f"{folder}: expected an adapter ({CONFIG}, {WEIGHTS}), found none; with LoRA a policy "
            "starts from SFT, or from a policy that was trained with LoRA"
        )
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    for key, wanted in (("r", params.rank), ("lora_alpha", params.alpha)):
        if config[key] != wanted:
            raise ModelFolderError(
                f"{folder}: {key} is {config[key]}, expected {wanted} as in params"
            )
    add_adapter(model, params, torch.Generator())
    found = load_file(folder / WEIGHTS)
    mine = adapter_weights(model)
    names = {name: PREFIX + name.replace(f".{NAME}", "") for name in mine}
    if set(names.values()) != set(found):
        odd = sorted(set(names.values()) ^ set(found))
        raise ModelFolderError(
            f"{folder}: adapter of another model, or with other targets; {odd[0]} is only in one"
        )
    for name, weight in mine.items():
        weight.data.copy_(found[names[name]])


@torch.no_grad()
def scale_adapter(model: nn.Module, share: float) -> None:
    """Keep only this share of what the adapter adds to the model's weights."""
    for name, weight in adapter_weights(model).items():
        if "lora_B" in name:
            weight.mul_(share)


def _adapted(model: nn.Module) -> list[tuple[str, Any]]:
    """The layers that carry the adapter, with their names."""
    if not has_adapter(model):
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415 (takes seconds)

    return [(name, m) for name, m in model.named_modules() if isinstance(m, BaseTunerLayer)]
