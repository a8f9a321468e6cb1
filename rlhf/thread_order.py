"""Results that do not depend on the number of threads, on a CPU.

torch divides a tensor of more than 32,768 elements among its threads. Two things follow that this
module undoes; each was measured with torch 2.13, and `tests/unit/rlhf/test_thread_order.py` looks
for further ones in a whole training step.

A kernel computes 16 elements at a time and the last few of its share one by one, by another formula
for exp that differs in the last bit. Where the shares end depends on the number of threads. So
SiLU, sigmoid, GELU and softplus get a part whose equal shares are all whole vectors, whatever their
number up to 8, and a rest that is too small to be divided. The result is that of one thread.

A sum over a whole tensor, and the gradients of softmax and layer normalisation, add up one part for
each thread. `ordered_sum` adds in an order of its own; the gradients are written out as sums over
one axis, which torch adds in one order.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf.bits import MAX_THREADS
from rlhf.cpu_kernels import replace_kernels

SHARED_OUT = 32_768
"""Up to so many elements are one thread's work (ATen's GRAIN_SIZE)."""

LONGEST_VECTOR = 32
"""Elements that a kernel computes at a time: 16 of float32 with AVX2, 32 of bfloat16."""

EVEN_SHARES = LONGEST_VECTOR * math.lcm(*range(1, MAX_THREADS + 1))
"""A multiple of this many elements makes whole vectors for 1 to 8 threads; 26,880."""

ROW = SHARED_OUT // 2


def ordered_sum(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of all elements, a scalar: rows of 16,384 first, then their sums."""
    flat = values.flatten() if dtype is None else values.flatten().to(dtype)
    while len(flat) > ROW:
        whole = len(flat) - len(flat) % ROW
        flat = torch.cat([flat[:whole].view(-1, ROW).sum(dim=1), flat[whole:]])
    return flat.sum()


def install() -> None:
    """Let the CPU kernels whose bits depend on the number of threads give way to those here."""
    replace_kernels(_KERNELS)


def _silu(x: Tensor) -> Tensor:
    return _in_even_shares(torch.ops.aten.silu.out, "out", x)


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _in_even_shares(torch.ops.aten.silu_backward.grad_input, "grad_input", grad, x)


def silu_backward_(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x, for that of silu(x), in whose place it is written; both contiguous."""
    kernel, flat = torch.ops.aten.silu_backward.grad_input, (grad.view(-1), x.view(-1))
    for part in _even_shares(len(flat[0])):
        kernel(*(each[part] for each in flat), grad_input=flat[0][part])
    return grad


def _sigmoid(x: Tensor) -> Tensor:
    wide = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return _in_even_shares(torch.ops.aten.sigmoid.out, "out", wide)


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return _in_even_shares(torch.ops.aten.gelu.out, "out", x, approximate=approximate)


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    kernel = torch.ops.aten.gelu_backward.grad_input
    return _in_even_shares(kernel, "grad_input", grad, x, approximate=approximate)


def _softplus(x: Tensor, beta: float | int = 1, threshold: float | int = 20) -> Tensor:
    return _in_even_shares(torch.ops.aten.softplus.out, "out", x, beta=beta, threshold=threshold)


def _softplus_backward(
    grad: Tensor, x: Tensor, beta: float | int, threshold: float | int
) -> Tensor:
    kernel = torch.ops.aten.softplus_backward.grad_input
    return _in_even_shares(kernel, "grad_input", grad, x, beta=beta, threshold=threshold)


def _softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """For y = softmax(x) and the gradient g of y: y (g - Σ g y)."""
    weighted = grad * output
    return (weighted - output * weighted.sum(dim, keepdim=True)).to(input_dtype)


def _layer_norm_backward(  # noqa: PLR0913, PLR0917 (torch's own signature)
    grad: Tensor,
    x: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of y = n w + b with n = (x - mean) rstd, for the gradient g of y and h = g w.

    dx = rstd (h - mean h - n mean(h n));    dw = Σ g n;    db = Σ g
    """
    axes = len(normalized_shape)
    inner, outer = tuple(range(-axes, 0)), tuple(range(grad.ndim - axes))
    g, wide = grad.to(mean.dtype), x.to(mean.dtype)
    normal = (wide - mean) * rstd
    h = g if weight is None else g * weight
    dx = rstd * (h - h.mean(inner, keepdim=True) - normal * (h * normal).mean(inner, keepdim=True))
    return (
        dx.to(x.dtype) if output_mask[0] else None,
        _over_rows(g * normal, outer, weight) if output_mask[1] else None,
        _over_rows(g, outer, bias) if output_mask[2] else None,
    )


def _over_rows(values: Tensor, axes: tuple[int, ...], like: Tensor | None) -> Tensor | None:
    if like is None:
        return None
    return (values.sum(axes) if axes else values).to(like.dtype)


def _in_even_shares(
    kernel: Callable[..., Any], result: str, *inputs: Tensor, **settings: Any
) -> Tensor:
    """An element-wise kernel on the part that divides evenly, then on the rest."""
    if _undivided(inputs):
        whole: Tensor = kernel(*inputs, **settings, **{result: torch.empty_like(inputs[0])})
        return whole
    shape, layout = inputs[0].shape, torch.empty_like(inputs[0])
    flat = [tensor.expand(shape).contiguous().view(-1) for tensor in inputs]
    out = torch.empty_like(flat[0])
    for part in _even_shares(len(out)):
        kernel(*(tensor[part] for tensor in flat), **settings, **{result: out[part]})
    found = out.view(shape)
    return found if layout.stride() == found.stride() else layout.copy_(found)


def _undivided(inputs: Sequence[Tensor]) -> bool:
    """Whether one thread computes all of it, in the order that its elements lie in memory."""
    elements, shape = inputs[0].numel(), inputs[0].shape
    return (elements <= SHARED_OUT or torch.get_num_threads() == 1) and all(
        tensor.shape == shape and tensor.is_contiguous() for tensor in inputs
    )


def _even_shares(elements: int) -> list[slice]:
    """The part of so many elements that divides evenly, and the rest; neither is empty."""
    even = elements - elements % EVEN_SHARES if elements > SHARED_OUT else 0
    parts = (slice(0, even), slice(even, elements))
    return [part for part in parts if part.stop > part.start]


_KERNELS: dict[str, Callable[..., Any]] = {
    "silu": _silu,
    "silu_backward": _silu_backward,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "_softmax_backward_data": _softmax_backward,
    "native_layer_norm_backward": _layer_norm_backward,
}
