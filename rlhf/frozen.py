"""Models that no step changes, kept in the precision that they are computed in.

Autocast casts the weights of the linear layers of a frozen model at every forward pass. Cast once
they give the same bits and take half the memory. Embeddings, norms and heads are computed in
float32 in any precision, so they stay, as does every weight that is trained. Layers of other kinds
(the experts of a mixture, Falcon's) are cast as before.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlhf.compute import HOST, Compute
from rlhf.models import load_policy

KINDS = (nn.Linear, Conv1D)
"""Layers of exactly these types (GPT-2 has the second) read their weights as autocast casts them;
one derived from them may do something else."""

BELOW_ADAPTER = ".base_layer"
"""What `peft` puts behind the name of a layer that an adapter lies on."""

Model = TypeVar("Model", bound=nn.Module)


def freeze(model: Model, compute: Compute) -> Model:
    """The model on its device, in the precision it is computed in; it is not for training.

    What is not cast stays as it is, `requires_grad` too: torch asks for it when it chooses how to
    multiply, so it may change a result's last digits.
    """
    if compute.casts:
        for _, layer in linear_layers(model):
            layer.requires_grad_(False).to(torch.bfloat16)
    return model.to(compute.device)


def load_frozen_policy(folder: Path, compute: Compute) -> PreTrainedModel:
    """A policy to sample from, or to compare with; the device never holds it in float32 as well."""
    return freeze(load_policy(folder, HOST), compute)


def cast_frozen(model: nn.Module, compute: Compute) -> None:
    """Cast what an adapter leaves untrained below the heads; in float32 nothing changes."""
    if not compute.casts:
        return
    for _, layer in linear_layers(model):
        if not any(weight.requires_grad for weight in layer.parameters(recurse=False)):
            layer.to(torch.bfloat16)


def restore_frozen(model: nn.Module, load: Callable[[], nn.Module]) -> None:
    """Give back the digits that `cast_frozen` took, from the model as it was loaded.

    An adapter is merged into these weights, and its changes are small beside bfloat16's steps.
    `load` gives the whole model on the host; the device takes a layer's weights in place of those
    that it had.
    """
    cast = [
        (name, layer) for name, layer in linear_layers(model) if layer.weight.dtype != torch.float32
    ]
    if not cast:
        return
    whole = load()
    for name, layer in cast:
        source = whole.get_submodule(name.replace(BELOW_ADAPTER, "")).state_dict()
        there = {key: weight.to(layer.weight.device) for key, weight in source.items()}
        layer.load_state_dict(there, assign=True)


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The linear layers of every trunk in the model, by their names in it; heads are none."""
    inner = {
        part
        for owner in model.modules()
        if isinstance(owner, PreTrainedModel)
        for part in owner.base_model.modules()
    }
    for name, layer in model.named_modules():
        if type(layer) in KINDS and layer in inner:
            yield name, layer
