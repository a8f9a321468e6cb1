"""Layers whose activations are computed again in the backward pass (Chen et al. 2016).

A layer keeps its input alone; the backward pass runs it once more before its gradient. So the
activations of one layer exist at a time, for a forward pass more: a third more work in training.
`transformers` can do this in training mode only, in which dropout draws; our models are always in
evaluation mode.

The last layer of a model is left as it is. Its activations are needed as soon as the backward pass
begins, and `rlhf.last_block` changes it for the forward pass only.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf.attention_masks import attending_as
from rlhf.tile_products import AsNow, now_and_again


def recompute_layers(*models: nn.Module) -> None:
    """From now on keep no activations of a model's layers but the last; gradients stay the same."""
    for layer in (layer for model in models for layer in recomputable(model)):
        layer.forward = _recomputed(layer)


def recomputable(model: nn.Module) -> list[nn.Module]:
    """The layers of every trunk within a model, without the last of each."""
    return [layer for stack in _stacks(model) for layer in list(stack)[:-1]]


def stacked_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of every trunk within a model."""
    return [layer for stack in _stacks(model) for layer in stack]


def _stacks(model: nn.Module) -> list[nn.ModuleList]:
    return [
        part
        for part in model.modules()
        if isinstance(part, nn.ModuleList)
        and all(isinstance(layer, GradientCheckpointingLayer) for layer in part)
    ]


def _recomputed(layer: nn.Module) -> Callable[..., Any]:
    forward: Callable[..., Any] = layer.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        # Decoding runs a layer thousands of times, and `checkpoint` takes 20 µs to do nothing.
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=partial(_contexts, layer),
            **kwargs,
        )

    return run


def _contexts(
    layer: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Those of a pass and of its repetition, which attends by the function of the pass."""
    for part in layer.modules():
        if isinstance(config := getattr(part, "config", None), PreTrainedConfig):
            return nullcontext(), _AsThen(config, config._attn_implementation)
    return now_and_again()


class _AsThen(AbstractContextManager[None]):
    """`attending_as`, as often as it is entered: a graph that is retained is gone through again.

    Products are made as they were, too.
    """

    def __init__(self, config: PreTrainedConfig, name: str):
        self._config, self._name, self._products = config, name, AsNow()

    def __enter__(self) -> None:
        self._inside = ExitStack()
        self._inside.enter_context(self._products)
        self._inside.enter_context(attending_as(self._config, self._name))

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)
