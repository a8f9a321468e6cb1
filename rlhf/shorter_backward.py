"""Backward passes of norms, rotated positions and gates that read and write less, on a CPU.

All are chains of small operations, whose backward passes autograd writes operation by operation:
on a CPU each is a trip through memory, and the longer one where the result is a tensor of its own.
Worked out by hand, a norm's takes a third of the time, a rotation's two thirds, a gate's half: what
was kept for it alone is overwritten. The forward passes do the same operations in the same order,
so they have the same bits; gradients are rounded otherwise, so only native bits have them: portable
ones stay as recorded.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers.activations import SiLUActivation

from rlhf import bits
from rlhf.replaced_forwards import replaced_forwards
from rlhf.thread_order import silu_backward_

_FAMILIES = ("Granite", "Llama", "Mistral", "Olmo2", "Qwen2", "Qwen3", "SmolLM3")

NORMS = frozenset(f"{family}RMSNorm" for family in (*_FAMILIES, "Phi3"))
"""Classes of transformers that divide by the root of the mean square, then scale by a weight."""

GATED = frozenset(f"{family}MLP" for family in (*_FAMILIES, "Cohere"))
"""Classes of transformers that put the product of a gate and of values through one more layer."""

SILU = frozenset({nn.SiLU, SiLUActivation})
"""What a gate's activation function is called."""

ROTATED = frozenset({"gemma", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3"})
"""`model_type` of the models that rotate the first half of each head with the second."""

ROTATION = "apply_rotary_pos_emb"
"""What transformers calls the function that rotates, in the module of each family."""


@contextlib.contextmanager
def shorter_backward(model: nn.Module) -> Iterator[None]:
    """Inside it norms, rotations and gates of the model are differentiated so.

    Where it computes on a CPU in float32 with native bits.
    """
    with contextlib.ExitStack() as stack:
        if bits.in_effect() == "native":
            stack.enter_context(replaced_forwards(model, _forward))
            for family in {_family(module) for module in model.modules()} - {None}:
                plain = vars(family)[ROTATION]
                stack.callback(setattr, family, ROTATION, plain)
                setattr(family, ROTATION, partial(_rotated, plain))
        yield


def _forward(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The forward pass with such a backward pass; None where it is another module."""
    kind = type(module).__name__
    if kind in NORMS:
        return partial(_norm, module, module.forward)
    if kind in GATED and type(module.act_fn) in SILU:
        return partial(_gated, module, module.forward)
    return None


def _family(module: nn.Module) -> Any:
    """The module of transformers that has the code of a model whose positions are rotated so."""
    config = getattr(module, "config", None)
    if getattr(config, "model_type", None) not in ROTATED:
        return None
    code = sys.modules[type(module).__module__]
    return code if ROTATION in vars(code) else None


def _takes(*tensors: Tensor) -> bool:
    """Whether these, which are to be differentiated, are of the kind that this is for."""
    here = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in tensors)
    return here and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def _norm(module: nn.Module, plain: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    weight = cast(Tensor, module.weight)
    if not _takes(x, weight):
        return plain(x)
    return cast(Tensor, cast(Any, _Norm).apply(x, weight, module.variance_epsilon))


def _gated(module: nn.Module, plain: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not _takes(x):
        return plain(x)
    gate, values = (cast(nn.Module, part)(x) for part in (module.gate_proj, module.up_proj))
    product = cast(Tensor, cast(Any, _Gate).apply(gate, values))
    return cast(Tensor, cast(nn.Module, module.down_proj)(product))


def _rotated(
    plain: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kw: Any
) -> Any:
    if args or kw or not _takes(q, k, cos, sin):
        return plain(q, k, cos, sin, *args, **kw)
    return tuple(cast(Any, _Rotation).apply(each, cos, sin) for each in (q, k))


class _Norm(torch.autograd.Function):
    """y = w x̂ with x̂ = s x and s = (mean(x²) + ε)^-½, over the last axis of size n.

    With the gradient g of y: dw = Σ g x̂, dx = s (g w − x̂ Σ(g w x̂) / n).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
        normal = x * scale
        ctx.save_for_backward(normal, scale, weight)
        return weight * normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        normal, scale, weight = ctx.saved_tensors
        of_weight = of_x = None
        product = gradient * normal
        if ctx.needs_input_grad[1]:
            of_weight = product.flatten(0, -2).sum(dim=0)
        if ctx.needs_input_grad[0]:
            share = product.mul_(weight).mean(dim=-1, keepdim=True).neg_()
            of_x = normal.mul_(share).addcmul_(gradient, weight).mul_(scale)
        return of_x, of_weight, None


class _Gate(torch.autograd.Function):
    """y = silu(a) b; with the gradient g of y: da = silu'(a) g b, db = g silu(a)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, values: Tensor) -> Tensor:
        opened = functional.silu(gate)
        ctx.save_for_backward(gate, opened, values)
        return opened * values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, opened, values = ctx.saved_tensors
        of_opened = (gradient * values).contiguous()
        return silu_backward_(of_opened, gate.contiguous()), opened.mul_(gradient)


class _Rotation(torch.autograd.Function):
    """Pairs (x₁, x₂) of a head's halves, turned: (x₁ c₁ − x₂ s₁, x₂ c₂ + x₁ s₂).

    With the gradient (g₁, g₂): (g₁ c₁ + g₂ s₂, g₂ c₂ − g₁ s₁).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        one, other = x.chunk(2, dim=-1)
        turned = x * cos
        first, second = turned.chunk(2, dim=-1)
        at_first, at_second = sin.chunk(2, dim=-1)
        first.sub_(other * at_first)
        second.add_(one * at_second)
        return turned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = (each.unsqueeze(1) for each in ctx.saved_tensors)
        one, other = gradient.chunk(2, dim=-1)
        turned = gradient * cos
        first, second = turned.chunk(2, dim=-1)
        at_first, at_second = sin.chunk(2, dim=-1)
        first.addcmul_(other, at_second)
        second.addcmul_(one, at_first, value=-1)
        return turned, None, None
