"""Gradients of weights in float32 where passes compute in bfloat16 on a GPU: added by the product.

autograd computes the gradient of a weight in bfloat16, casts it to float32 and adds that to the sum
of the micro-batches before. On an H200 (2026-11-27), at the shape of a model with one billion
weights and 1,536 tokens, the three take twice as long as a product that adds its float32 sums to
what is there (`torch.addmm`). Nor is the gradient rounded to bfloat16 on the way: its error is
1e-6 of it in place of 0.002.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlhf.head_products import in_bfloat16
from rlhf.replaced_forwards import replaced_forwards

DEVICES = ("cuda",)
"""Where gradients are added so."""

SMALLEST = 2**18
"""Numbers in a weight that is worth the time of the host: those of an adapter are not."""


@contextlib.contextmanager
def added_in_float32(model: nn.Module) -> Iterator[None]:
    """Inside it backward passes add gradients of larger linear layers to `.grad` themselves.

    Of layers that autocast computes in bfloat16; those outside it stay as they are, and so does one
    whose forward pass somebody else has replaced.
    """
    with replaced_forwards(model, _forward):
        yield


def _is_trained(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
        return False
    weight = layer.weight
    lies_there = weight.device.type in DEVICES and weight.dtype == torch.float32
    return lies_there and weight.requires_grad and weight.numel() >= SMALLEST


def _forward(layer: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The layer's forward pass with such a backward pass; None where it keeps its own."""
    if not _is_trained(layer):
        return None
    plain, device = layer.forward, cast(Tensor, layer.weight).device.type

    def forward(x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(device) or not torch.is_grad_enabled():
            return cast(Tensor, plain(x))
        # Asked for here: a recording puts others in the place of the layer's weights.
        return cast(Tensor, cast(Any, _Product).apply(layer.weight, layer.bias, x))

    return forward


class _Product(torch.autograd.Function):
    """`x W' + b` in bfloat16; the gradient of W is added to `W.grad` and not returned."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        lower, inputs = in_bfloat16(weight), x.to(torch.bfloat16)
        ctx.save_for_backward(inputs, lower)
        # Not saved with them: where activations are computed again, that would give a copy back.
        ctx.weight, ctx.dtype = weight, x.dtype
        with torch.autocast(x.device.type, enabled=False):
            return functional.linear(inputs, lower, None if bias is None else in_bfloat16(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        inputs, lower = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        # Zeros where there is none yet: with them the product is the one that a recording repeats.
        if ctx.weight.grad is None:
            ctx.weight.grad = torch.zeros_like(ctx.weight)
        _add_product(ctx.weight.grad, rows.t(), inputs.reshape(-1, inputs.shape[-1]))
        of_bias = rows.sum(dim=0, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        of_x = (gradient @ lower).to(ctx.dtype) if ctx.needs_input_grad[2] else None
        return None, of_bias, of_x


def _add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    """Add the product of two bfloat16 matrices, added up in float32."""
    if total.device.type == "cuda":
        torch.addmm(total, one, other, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(one.float(), other.float())
