"""A separate value model and the policy train in passes of their own: same bits, half the memory.

What they are compared with is one backward pass from the sum of both losses.
"""

import weakref

import pytest
import torch

from rlhf import ppo_objective
from tests.ppo_world import ONE_STEP, fresh, metrics_of, params, run

CHANGES = [
    {},
    {"packing": True},
    {"micro_batch_size": 3},
    {"kl_in": "loss", "kl_estimator": "k2", "entropy_coef": 0.1, "value_huber_delta": 0.5},
]


def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train from the sum of both losses."""
    monkeypatch.setattr(
        "rlhf.ppo_update.losses", lambda actor, *, train_policy: [ppo_objective._loss_of_both]
    )


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_two_passes_give_the_bits_of_one(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = params(**changes)
    apart = fresh(settings, reference_seed=1)
    found = run(apart, settings)

    together(monkeypatch)
    whole = fresh(settings, reference_seed=1)
    expected = run(whole, settings)

    weights = whole.models.actor.state_dict()
    for name, weight in apart.models.actor.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    for one, other in zip(metrics_of(found), metrics_of(expected), strict=True):
        assert one == other


class Kept:
    """Bytes of the tensors that backward passes keep, now and at the most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        view = tensor.detach().view_as(tensor)
        self.now += tensor.nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(view, self.let_go, tensor.nbytes)
        return view

    def let_go(self, count: int) -> None:
        self.now -= count


def most_kept() -> int:
    settings, kept = params(**ONE_STEP), Kept()
    training = fresh(settings)
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        run(training, settings)
    return kept.most


def test_the_activations_of_one_are_let_go_before_those_of_the_other_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy has a head and the value model has not, so it is a little more than half."""
    apart = most_kept()
    together(monkeypatch)

    assert apart < 0.6 * most_kept()
