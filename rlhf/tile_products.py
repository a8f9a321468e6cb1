"""Products of float32 matrices in bfloat16, on a processor that has tiles for them (Intel's AMX).

oneDNN rounds both factors to bfloat16 and adds their products up in float32. Nothing else changes:
weights, activations and gradients are float32, and so are all passes that are written by hand for
that. Autocast would round each result, too, cast activations back and forth, and attend in
bfloat16, whose backward pass takes torch five times as long on a CPU.

At SmolLM2's shape the products of a backward pass take a quarter to a half of the time of float32's
(Intel family 6 model 207, one thread, 240 to 1,024 tokens; docs/lab-notebook.md, 2026-11-28). The
first product of each shape takes about 5 ms more, in which oneDNN writes its code.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlhf import bits

SMALLEST = 2**16
"""Numbers in a weight that is worth it; products of smaller ones stay float32."""

ROWS_STEP = 32
"""Packed rows have a multiple of so many tokens: few shapes are new then."""

_PLAIN = nn.Linear.forward


def exist() -> bool:
    """Whether this process may use them: the processor has them, and its bits are native."""
    native = bits.in_effect() == "native" and torch.backends.mkldnn.is_available()
    return native and bool(torch.cpu._is_amx_tile_supported())


def are_on() -> bool:
    """Whether linear layers compute with them now."""
    return nn.Linear.forward is _forward


def tile_products() -> AbstractContextManager[None]:
    """Inside it larger linear layers on the CPU multiply so, and so will their backward passes.

    Of all models of the process; one thread at a time.
    """
    return _linear_layers_by(_forward)


def no_tiles() -> AbstractContextManager[None]:
    """Inside it linear layers compute as ever, in the middle of `tile_products` too."""
    return _linear_layers_by(_PLAIN) if are_on() else contextlib.nullcontext()


@contextlib.contextmanager
def _linear_layers_by(forward: Callable[[nn.Linear, Tensor], Tensor]) -> Iterator[None]:
    before = nn.Linear.forward
    if before is forward:
        yield
        return
    nn.Linear.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Linear.forward = before  # type: ignore[method-assign]


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    if not _is_worth_it(layer.weight, x):
        return _PLAIN(layer, x)
    return linear(x, layer.weight, layer.bias)


class AsNow(AbstractContextManager[None]):
    """Inside it linear layers multiply as they did where this was made.

    For passes that run again in the backward pass, which knows nothing of the contexts around the
    first; a graph that is retained is gone through more than once.
    """

    def __init__(self) -> None:
        """Remember how they multiply now."""
        self._in_tiles = are_on()

    def __enter__(self) -> None:
        self._inside = tile_products() if self._in_tiles else contextlib.nullcontext()
        self._inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)


def now_and_again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Of a pass and of its repetition, as `torch.utils.checkpoint` asks for them."""
    return contextlib.nullcontext(), AsNow()


@contextlib.contextmanager
def multiplying(in_tiles: bool) -> Iterator[None]:
    """Inside it all products of float32 tensors on the CPU are made in tiles, or as ever."""
    if not in_tiles:
        yield
        return
    matmul = cast(Any, torch.backends.mkldnn).matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x W' + b` with factors rounded to bfloat16; the same for its gradients."""
    if torch.is_grad_enabled():
        return cast(Tensor, cast(Any, _Product).apply(weight, bias, x))
    with multiplying(in_tiles=True):
        return functional.linear(x, weight, bias)


def _is_worth_it(weight: Tensor, x: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and weight.dtype == x.dtype == torch.float32
    return on_cpu and weight.numel() >= SMALLEST


class _Product(torch.autograd.Function):
    """With the gradient g of y = x W' + b: dW = g' x, db = Σ g, dx = g W."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        of_weight, _, of_x = ctx.needs_input_grad
        ctx.save_for_backward(weight if of_x else None, x if of_weight else None)
        with multiplying(in_tiles=True):
            return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_weight, of_bias, of_x = ctx.needs_input_grad
        with multiplying(in_tiles=True):
            return (
                rows.t() @ x.reshape(-1, x.shape[-1]) if of_weight else None,
                rows.sum(dim=0) if of_bias else None,
                gradient @ weight if of_x else None,
            )
