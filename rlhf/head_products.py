"""Logits where trunks compute in bfloat16 on a GPU: factors of that precision, float32 sums.

A product of float32 factors takes an H100 twelve times as long (2026-11-26: 1,024 tokens, a
vocabulary of 128,256), more than all layers of a model of one billion parameters together. The
logits keep the digits of float32: in bfloat16 one of 62 would be a multiple of 0.25. What is
rounded are hidden states, which come from layers that compute so, and weights: in random models the
norm of what that changes is 0.0024 of the norm of the logits.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

DEVICES = ("cuda",)
"""Where logits are computed so."""

_kept: dict[Tensor, Tensor] | None = None
"""The casts of weights inside `keeping_casts`."""


@contextlib.contextmanager
def keeping_casts() -> Iterator[None]:
    """Inside it no weight changes, so each is cast once; one thread of a process at a time."""
    global _kept
    if _kept is not None:
        yield
        return
    _kept = {}
    try:
        yield
    finally:
        _kept = None


@contextlib.contextmanager
def no_kept_casts() -> Iterator[None]:
    """Inside it each cast is made where it is asked for, and not kept."""
    global _kept
    before, _kept = _kept, None
    try:
        yield
    finally:
        _kept = before


def product_in_bfloat16(layer: nn.Module, hidden: Tensor) -> Tensor | None:
    """The layer's logits (..., vocab) in float32, or None where it computes them as it is.

    Hidden states are (..., hidden); to be asked inside the autocast of the trunk.
    """
    kind = hidden.device.type
    if kind not in DEVICES or not torch.is_autocast_enabled(kind):
        return None
    if type(layer) is not nn.Linear or layer.bias is not None:
        return None
    logits = bfloat16_product(hidden.flatten(0, -2), layer.weight)
    return logits.view(*hidden.shape[:-1], len(layer.weight))


def bfloat16_product(rows: Tensor, weight: Tensor) -> Tensor:
    """`rows @ weight.T` in float32, (rows, hidden) and (vocab, hidden) rounded to bfloat16."""
    return cast(Tensor, cast(Any, _Product).apply(rows, weight))


class _Product(torch.autograd.Function):
    """Gradients are products of the same kind."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        rows, weight = rows.to(torch.bfloat16), in_bfloat16(weight)
        ctx.save_for_backward(rows, weight)
        return _multiply(rows, weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rows, weight = ctx.saved_tensors
        of_logits = gradients[0].to(torch.bfloat16)
        of_rows = _multiply(of_logits, weight) if ctx.needs_input_grad[0] else None
        of_weight = _multiply(of_logits.t(), rows) if ctx.needs_input_grad[1] else None
        return of_rows, of_weight


def _multiply(one: Tensor, other: Tensor) -> Tensor:
    """Of two bfloat16 matrices, added up in float32."""
    kind = one.device.type
    # Where autocast is off anyway, as in backward passes, leaving it would drop its casts.
    on = torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if on else contextlib.nullcontext():
        if kind == "cuda":
            return torch.mm(one, other, out_dtype=torch.float32)
        return one.float() @ other.float()


def in_bfloat16(weight: Tensor) -> Tensor:
    """The weight rounded; inside `keeping_casts` once for all who ask."""
    if _kept is None:
        return weight.to(torch.bfloat16)
    if weight not in _kept:
        _kept[weight] = weight.detach().to(torch.bfloat16)
    return _kept[weight]
