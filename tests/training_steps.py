"""Optimiser steps of each training on a tiny model, for tests of several processes.

Each function returns the gradient of every step, whole, and the metrics.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf import reward, sft
from rlhf.compute import Compute
from rlhf.divided import whole
from rlhf.optimisers import Optimiser, Training
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.reward import RewardParams
from rlhf.params.sft import SFTParams
from rlhf.seeding import Seeds
from rlhf.sharding import Held
from tests import ppo_world, tiny
from tests.tiny import COMPUTE, EOS, PAD

EXAMPLES = [
    sft.Example([5, 6, 7], [8, 9, EOS]),
    sft.Example([4], [10, EOS]),
    sft.Example([3, 2, 13, 14], [EOS]),
    sft.Example([9, 9], [12, 11, 3, 4, 5, EOS]),
    sft.Example([6, 7], [6, 7, EOS]),
]
PAIRS = [
    reward.EncodedPair([5, 6, 7, EOS], [5, 6, 8, 9, EOS], 0.0, 1.0),
    reward.EncodedPair([4, EOS], [4, 10, 11, 12, 13, EOS], 0.5, 2.0),
    reward.EncodedPair([3, 2, 13, EOS], [3, 2, EOS], 0.0, 0.25),
    reward.EncodedPair([9, 9, 3, 4, 5, EOS], [9, 9, 12, EOS], 1.0, 1.0),
    reward.EncodedPair([6, 7, EOS], [6, 8, EOS], 0.0, 3.0),
]


class Recording(Optimiser):
    """Notes the gradient of every step, after it has been added up."""

    def apply(self, factor: float) -> None:
        self.noted = [*getattr(self, "noted", []), self.gradient()]
        super().apply(factor)

    def gradient(self) -> torch.Tensor:
        parts = [whole(w.grad).flatten() for w in self.weights if w.grad is not None]
        return torch.cat(parts).double()


PLAIN = OptimiserParams(max_grad_norm=1e9, warmup_steps=0, lr=1e-3)


def recorded(model: torch.nn.Module, divided: bool) -> Training:
    held = Held(model, divided=divided)
    return Training(model, Recording(PLAIN, model.named_parameters()), held)


def sft_steps(
    compute: Compute = COMPUTE, *, divided: bool = False, **changes
) -> tuple[list[torch.Tensor], list[float]]:
    params = SFTParams(epochs=1, batch_size=3, optimiser=PLAIN, **changes)
    training = recorded(tiny.llama().to(compute.device), divided)
    steps = sft.train(training, EXAMPLES, params, pad_id=PAD, compute=compute, seeds=Seeds(0))
    losses = [step.loss for step in steps]
    return training.optimiser.noted, losses


def reward_steps(
    compute: Compute = COMPUTE, *, divided: bool = False, **changes
) -> tuple[list[torch.Tensor], list[float]]:
    params = RewardParams(
        epochs=1,
        batch_size=3,
        label_smoothing=0.1,
        centring_coef=0.3,
        optimiser=PLAIN,
        **changes,
    )
    training = recorded(tiny.reward_model(), divided)
    steps = reward.train(training, PAIRS, params, pad_id=PAD, compute=compute, seeds=Seeds(0))
    numbers = [number for s in steps for number in (s.loss, s.accuracy, s.margin)]
    return training.optimiser.noted, numbers


def ppo_steps(
    compute: Compute = COMPUTE, *, divided: bool = False, **changes
) -> tuple[list[torch.Tensor], list[float]]:
    settings = {"iterations": 1, "epochs": 1, "micro_batch_size": 3, **changes}
    params = ppo_world.params(optimiser=PLAIN, value_optimiser=PLAIN, **settings)
    training = ppo_world.fresh(params, reference_seed=1, divided=divided)
    for name in ("optimiser", "value_optimiser"):
        getattr(training, name).__class__ = Recording
    (only,) = ppo_world.metrics_of(ppo_world.run(training, params, compute=compute))
    both = (training.optimiser, training.value_optimiser)
    noted = [gradient for optimiser in both for gradient in getattr(optimiser, "noted", [])]
    return noted, list(only.curves().values())


LARGEST_GAP = 2e-6
"""Of the gradient of several processes, as a share of the gradient of one."""


def assert_gradients_of_one(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], expected: Sequence[Tensor]
) -> None:
    """Two processes have the same gradients in every step, and in the first those of one."""
    gap = (ours[0] - expected[0]).norm() / expected[0].norm()
    assert gap.item() <= LARGEST_GAP
    assert len(ours) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
