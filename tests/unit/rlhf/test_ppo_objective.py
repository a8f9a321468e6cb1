"""A separate value model and the policy train in passes of their own: same bits, half the memory.

What they are compared with is one backward pass from the sum of both losses.
"""

import weakref

import numpy as np
import pytest
import torch

from rlhf import ppo_objective
from rlhf.batches import PPOBatch
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


def test_the_objective_is_the_published_one_with_every_setting_of_the_round(assert_close) -> None:
    """Written out in NumPy, for a rollout that another policy and critic are said to have made."""
    settings = params(
        **ONE_STEP, value_model="shared", clip_range=0.1, dual_clip=1.3, value_clip_range=0.2,
        value_coef=0.3, entropy_coef=0.7,
    )  # fmt: skip
    (one,) = run(fresh(settings), settings)
    rollout, actor = one.rollout, fresh(settings).models.actor
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(4, *rollout.logprobs.shape, generator=draws)
    ids = (rollout.prompt_ids, rollout.prompt_mask, rollout.response_ids, rollout.response_mask)
    batch = PPOBatch(
        prompt_ids=ids[0], prompt_mask=ids[1], response_ids=ids[2], response_mask=ids[3],
        old_logprobs=rollout.logprobs + noise[0] / 3, ref_logprobs=rollout.logprobs,
        old_values=noise[1], advantages=noise[2], returns=noise[3],
    )  # fmt: skip
    (loss_of,) = ppo_objective.losses(actor, train_policy=True)
    part = ppo_objective.Part(batch, batch.masks())
    tokens = int(ids[3].sum())
    loss, _ = loss_of(actor, part, ppo_objective.Setting(settings, 0.05, tokens))

    with torch.no_grad():
        logits, values = (each.double().numpy() for each in actor(*ids))
    logits = logits / settings.sampling.temperature
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    taken = np.take_along_axis(log_p, ids[2].numpy()[..., None], axis=-1)[..., 0]
    old, before, advantage, wanted = (
        each.double().numpy()
        for each in (batch.old_logprobs, batch.old_values, batch.advantages, batch.returns)
    )
    ratio = np.exp(taken - old)
    surrogate = np.maximum(-advantage * ratio, -advantage * np.clip(ratio, 0.9, 1.1))
    capped = np.where(advantage < 0, np.minimum(surrogate, -1.3 * advantage), surrogate)
    near = before + np.clip(values - before, -0.2, 0.2)
    squares = (values - wanted) ** 2
    errors = np.maximum(squares, (near - wanted) ** 2) / 2
    real = ids[3].numpy()
    assert (capped < surrogate)[real].any()
    assert (errors > squares / 2)[real].any()
    entropy = -(np.exp(log_p) * log_p).sum(axis=-1)
    assert_close(loss, (capped - 0.7 * entropy + 0.3 * errors)[real].mean(), rtol=1e-5, atol=0)
