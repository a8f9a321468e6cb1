"""Log-probabilities of tokens, whose gradient takes one tensor of the size of the logits.

autograd fills another with zeros, puts the gradients of the tokens there and reads both to write a
third. Here the probabilities themselves become the gradient, where they lie. What comes out of the
forward pass has the bits of the plain functions; gradients are rounded otherwise, so on a CPU only
native bits have them.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlhf import bits
from rlhf.compute import plain_writes
from rlhf.shapes import Logits, PerToken, ResponseIds, Scalar

RECORDED = ("cpu",)
"""Devices of which bytes are recorded: there only native bits have these gradients."""


def is_used_for(logits: Tensor) -> bool:
    """Whether logits (..., vocab) are to be differentiated, by what is here."""
    wanted = torch.is_grad_enabled() and logits.requires_grad
    return wanted and (logits.device.type not in RECORDED or bits.in_effect() == "native")


def picked_logprobs(logits: Logits, token_ids: ResponseIds, *, temperature: float) -> PerToken:
    """Log-probability of each token in softmax(logits / temperature), in nats."""
    logprobs, _ = _apply(_Picked, logits, token_ids, temperature, False)
    return cast(PerToken, logprobs)


def picked_logprobs_and_entropy(
    logits: Logits, token_ids: ResponseIds, *, temperature: float
) -> tuple[PerToken, PerToken]:
    """Log-probability of each token and the entropy, which has no gradient; both in nats."""
    logprobs, entropy = _apply(_Picked, logits, token_ids, temperature, True)
    return logprobs, entropy


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Scalar:
    """-Σ log softmax(logits)[label] for logits (tokens, vocab) and labels (tokens,), in nats."""
    return cast(Scalar, _apply(_CrossEntropy, logits, labels))


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return cast(Any, function).apply(*args)


class _Picked(torch.autograd.Function):
    """With the gradient g of log p(a) and 1_a, which is 1 at a: dz = g (1_a − p) / T."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, token_ids: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        wide = logits if temperature == 1 else logits / temperature
        log_p = torch.log_softmax(wide, dim=-1)
        places = token_ids.unsqueeze(-1)
        picked = log_p.gather(-1, places).squeeze(-1)
        p, entropy = log_p.exp() if with_entropy else log_p.exp_(), None
        if with_entropy:
            # Of a forbidden token log p is -inf: p log p is 0, where 0 · inf would be NaN.
            entropy = -log_p.clamp_(min=torch.finfo(log_p.dtype).min).mul_(p).sum(dim=-1)
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(p, places)
        ctx.temperature = temperature
        return picked, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        p, places = ctx.saved_tensors
        share = (gradient if ctx.temperature == 1 else gradient / ctx.temperature).unsqueeze(-1)
        return _added(p.mul_(-share), places, share), None, None, None


class _CrossEntropy(torch.autograd.Function):
    """With the gradient g of the sum: dz = g (p − 1_label) in each row."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        log_p = torch.log_softmax(logits, dim=-1)
        total = functional.nll_loss(log_p, labels, reduction="sum")
        ctx.save_for_backward(log_p.exp_(), labels.unsqueeze(-1))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        p, places = ctx.saved_tensors
        share = gradient.expand(places.shape)
        return _added(p.mul_(gradient), places, -share), None


def _added(everywhere: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """With a number added at the one place of each row (..., 1), in the same memory."""
    with plain_writes():
        return everywhere.scatter_add_(-1, places, values)
