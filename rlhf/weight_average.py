"""The average of a model's weights over its training, which wobbles less than the last weights.

    a_n = (w_n + d w_{n-1} + d^2 w_{n-2} + ... + d^(n-1) w_1) / (1 + d + ... + d^(n-1))

An exponential average, since a round may end early and nobody knows beforehand which weights are
the last. The starting weights w_0 have no part in it; Adam's correction of bias does the same.
"""

from typing import Any

import torch
from torch import nn

from rlhf.divided import held_as


class WeightAverage:
    """The running average of a model's trained weights; empty until the first `add`."""

    def __init__(self, model: nn.Module, decay: float):
        """Average the weights of `model`, which goes on being trained; a tied weight counts once.

        Args:
            model: what is trained.
            decay: what remains of a state's share with each later one, above 0 and below 1.
        """
        self._weights = {name: w for name, w in model.named_parameters() if w.requires_grad}
        self._decay = decay
        self._share = 0.0
        self._means = {name: torch.zeros_like(w) for name, w in self._weights.items()}

    @torch.no_grad()
    def add(self) -> None:
        """Take the weights as they are now into the average."""
        # The share of all states so far, in units of the newest: 1 + d + d^2 + ...
        self._share = 1.0 + self._decay * self._share
        for name, weight in self._weights.items():
            mean = self._means[name]
            mean.add_((weight - mean) / self._share)

    @torch.no_grad()
    def publish(self) -> None:
        """Set the model's weights to their average; leave them where nothing was added."""
        if self._share:
            for name, weight in self._weights.items():
                weight.copy_(self._means[name])

    def state_dict(self) -> dict[str, Any]:
        """Everything that `add` changes."""
        return {"share": self._share, "means": self._means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._share = state["share"]
        for name, mean in self._means.items():
            mean.copy_(held_as(state["means"][name], mean))


@torch.no_grad()
def interpolate(model: nn.Module, other: nn.Module, share: float) -> None:
    """Move the weights of `model` towards those of `other`, by `share` of the way."""
    for weight, target in zip(model.parameters(), other.parameters(), strict=True):
        weight.lerp_(target, share)
