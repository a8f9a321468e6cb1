"""Gradients of large weights, added where they are kept by what computes them, on a CPU.

autograd computes the gradient of a micro-batch beside the sum of those before and then adds it: a
weight is written and read twice more. Of an embedding it fills a tensor as large as the vocabulary
with zeros for a few hundred rows, and where that weight is the head's too, adds the two once more.
Here the product adds to the sum as it goes, and the embedding adds its few rows.

Sums are rounded in another order than autograd's, so weights below `SMALLEST` are left to it, as
are devices other than a CPU and precisions other than float32.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlhf import tile_products
from rlhf.replaced_forwards import replaced_forwards

SMALLEST = 2**18
"""Numbers in a weight that is worth it, 1 MiB: a smaller one and its gradient stay in the
processor's caches. The embedded model has none so large."""


@contextlib.contextmanager
def added_in_place(model: nn.Module) -> Iterator[None]:
    """Inside it backward passes add gradients of the model's larger weights to `.grad` themselves.

    For plain linear layers and embeddings, whose weights autograd must not be asked for otherwise
    (`torch.autograd.grad`). A layer whose forward pass somebody else has replaced is left alone.
    """
    with replaced_forwards(model, _forward):
        yield


def _forward(layer: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The layer's forward pass with such a backward pass; None where it keeps its own."""
    if type(layer) is nn.Linear and _is_worth_it(layer.weight):
        return partial(_Product.apply, layer.weight, layer.bias)
    if type(layer) is nn.Embedding and _is_worth_it(layer.weight):
        plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return partial(_Embedding.apply, layer.weight, layer.padding_idx) if plain else None
    return None


def _is_worth_it(weight: Tensor) -> bool:
    """Whether it is a large weight in training, in float32 on the CPU."""
    return (
        type(weight) is nn.Parameter
        and weight.requires_grad
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= SMALLEST
    )


def _rows(values: Tensor) -> Tensor:
    """As a matrix of as many columns as the last axis has."""
    return values.reshape(-1, values.shape[-1])


class _Product(torch.autograd.Function):
    """`x W' + b`; the gradient of W is added to `W.grad` and not returned."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        # Not saved with it: where activations are computed again, that would give a copy back.
        ctx.weight, ctx.in_tiles = weight, tile_products.are_on()
        with tile_products.multiplying(ctx.in_tiles):
            return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        (x,), weight = ctx.saved_tensors, ctx.weight
        rows, inputs = _rows(gradient), _rows(x)
        of_bias = rows.sum(dim=0) if ctx.needs_input_grad[1] else None
        with tile_products.multiplying(ctx.in_tiles):
            if weight.grad is None:
                weight.grad = rows.t() @ inputs
            else:
                torch.addmm(weight.grad, rows.t(), inputs, out=weight.grad)
            return None, of_bias, gradient @ weight if ctx.needs_input_grad[2] else None


class _Embedding(torch.autograd.Function):
    """Rows of a table; their gradients are added to `weight.grad` and not returned."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, padding_id: int | None, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding_id = weight, padding_id
        return functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        (ids,), weight = ctx.saved_tensors, ctx.weight
        ids, rows = ids.flatten(), _rows(gradient)
        if ctx.padding_id is not None:
            trained = ids != ctx.padding_id
            ids, rows = ids[trained], rows[trained]
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.index_add_(0, ids, rows)
        return None, None, None
