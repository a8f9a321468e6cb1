"""Muon: momentum whose matrix updates are orthogonalised (Jordan et al. 2024).

    B <- mu B + (1 - mu) G            momentum
    U  = orthogonalise((1 - mu) G + mu B)      Nesterov; five quintic Newton-Schulz steps
    W <- (1 - lr decay) W - 0.2 lr sqrt(max(rows, columns)) U

The last factor brings an update to the root mean square of AdamW's (Liu et al. 2025), so that one
learning rate suits both. Same as `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, but matrices
of one shape go through the iteration together, and in float32 where there is no fast bfloat16: on
a CPU and a small model, torch's takes longer than the forward and backward pass.

The matrices of a divided model (`rlhf.sharding`) are put together one after the other, and every
process computes the whole update of each.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.divided import is_divided, part, rows_of, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
MOMENTUM = 0.95
EPS = 1e-7


def orthogonalise(matrices: Tensor) -> Tensor:
    """Matrices (num, rows, columns) with their singular values brought near 1."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.flatten(1).norm(dim=1).clamp_min(EPS)[:, None, None]
    for _ in range(STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for matrices; vectors, embeddings and heads belong to another optimiser."""

    def __init__(self, weights: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0):
        """Take two-dimensional weights."""
        super().__init__(list(weights), {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every weight that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                scale = 0.2 * max(shape) ** 0.5 * group["lr"]
                for weight, update in self._updates(weights):
                    part(weight).mul_(1 - group["lr"] * group["weight_decay"])
                    part(weight).add_(update, alpha=-scale)

    def _updates(self, weights: Sequence[nn.Parameter]) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Weights of one shape with their updates; of divided ones a process has one whole."""
        if not any(is_divided(weight) for weight in weights):
            updates = orthogonalise(torch.stack([self._direction(w) for w in weights]))
            yield from zip(weights, updates, strict=True)
            return
        for weight in weights:
            update = orthogonalise(whole(self._direction(weight))[None])[0]
            yield weight, rows_of(update, weight)

    def _direction(self, weight: nn.Parameter) -> Tensor:
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = state["momentum"]
        momentum.lerp_(weight.grad, 1 - MOMENTUM)
        return weight.grad.lerp(momentum, MOMENTUM)
