"""What must hold for every function that takes a mask: padding invariance and row equivariance.

Each entry of `FUNCTIONS` names a function with the number of (batch, response) tensors it reads and
returns all its results. Those of the second table are losses: they have a gradient with respect
to the first tensor.
"""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given

from rlhf.advantages import explained_variance, gae, grpo, reinforce_pp, rloo
from rlhf.kl import approx_kl
from rlhf.language_model_loss import language_model_loss
from rlhf.masked import (
    last_token_index,
    masked_mean,
    masked_sum,
    masked_variance,
    rescale,
    sequence_sums,
    whiten,
)
from rlhf.ppo_losses import entropy_bonus, policy_loss, value_loss
from rlhf.reward_shaping import penalise_length, shape_rewards
from tests.properties.strategies import batches, junk

VOCABULARY = 5


def language_model(mask, values, *, normaliser=None):
    """Five logits for each position and a label, all made from one number."""
    steps = torch.arange(VOCABULARY, dtype=values.dtype)
    labels = torch.where(mask, values.nan_to_num(0, 0, 0).abs().long() % VOCABULARY, -100)
    logits = values.unsqueeze(2) * steps.cos()
    return (language_model_loss(logits, labels, mask, normaliser=normaliser),)


def of_one_prompt(estimator, mask, rewards, **settings):
    """All rows are responses to one prompt."""
    assume(len(mask) > 1)
    return estimator(rewards, mask, samples_per_prompt=len(mask), **settings)


FUNCTIONS = {
    "masked_sum": (1, lambda mask, v: (masked_sum(v, mask),)),
    "masked_mean": (1, lambda mask, v: (masked_mean(v, mask),)),
    "masked_variance": (1, lambda mask, v: (masked_variance(v, mask),)),
    "whiten": (1, lambda mask, v: (whiten(v, mask),)),
    "rescale": (1, lambda mask, v: (rescale(v, mask),)),
    "sequence_sums": (1, lambda mask, v: (sequence_sums(v, mask),)),
    "last_token_index": (0, lambda mask: (last_token_index(mask),)),
    "approx_kl": (2, lambda mask, new, old: (approx_kl(new, old, mask),)),
    "shape_rewards k1": (
        2,
        lambda mask, new, ref: (shape_rewards(row_scores(mask), new, ref, mask, kl_coef=0.3),),
    ),
    "shape_rewards k3": (
        2,
        lambda mask, new, ref: (
            shape_rewards(row_scores(mask), new, ref, mask, kl_coef=0.3, estimator="k3"),
        ),
    ),
    "penalise_length": (
        0,
        lambda mask: (penalise_length(row_scores(mask), mask, per_token=0.1),),
    ),
    "gae": (2, lambda mask, rewards, values: gae(rewards, values, mask, gamma=0.9, lam=0.8)),
    "rloo": (1, lambda mask, rewards: of_one_prompt(rloo, mask, rewards)),
    "grpo": (1, lambda mask, rewards: of_one_prompt(grpo, mask, rewards, divide_by_std=True)),
    "reinforce_pp": (1, lambda mask, rewards: reinforce_pp(rewards, mask, gamma=0.9)),
    "explained_variance": (2, lambda mask, v, returns: (explained_variance(v, returns, mask),)),
}

LOSSES = {
    "policy_loss": (
        3,
        lambda mask, new, old, adv, **n: policy_loss(new, old, adv, mask, clip_range=0.2, **n),
    ),
    "policy_loss with dual clip": (
        3,
        lambda mask, new, old, adv, **n: policy_loss(
            new, old, adv, mask, clip_range=0.2, dual_clip=2.0, **n
        ),
    ),
    "value_loss": (
        3,
        lambda mask, new, old, ret, **n: value_loss(new, old, ret, mask, clip_range=0.5, **n),
    ),
    "value_loss without clip": (
        3,
        lambda mask, new, old, ret, **n: value_loss(new, old, ret, mask, clip_range=None, **n),
    ),
    "huber value_loss": (
        3,
        lambda mask, new, old, ret, **n: value_loss(
            new, old, ret, mask, clip_range=0.5, huber_delta=1.0, **n
        ),
    ),
    "entropy_bonus": (1, lambda mask, values, **n: (entropy_bonus(values, mask, **n),)),
    "language_model_loss": (1, language_model),
}

ALL = FUNCTIONS | LOSSES


def row_scores(mask):
    """A score for each row, made from its mask, so that it moves with the row."""
    return mask.double() @ torch.arange(1, mask.shape[1] + 1, dtype=torch.float64)


def with_gradient(function, mask, first, *others, **options):
    """All results of a loss and the gradient of its first tensor."""
    first = first.clone().requires_grad_()
    results = function(mask, first, *others, **options)
    results[0].backward()
    return results, first.grad


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), behind=junk)
def test_s22_junk_behind_the_mask_changes_no_result(name, data, behind):
    count, function = ALL[name]
    mask, tensors = data.draw(batches(count))
    junked = [torch.where(mask, tensor, behind) for tensor in tensors]
    for clean, dirty in zip(function(mask, *tensors), function(mask, *junked), strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("name", LOSSES)
@given(data=st.data(), behind=junk)
def test_s22_junk_behind_the_mask_changes_no_gradient_and_gets_none(name, data, behind):
    count, function = LOSSES[name]
    mask, tensors = data.draw(batches(count))
    junked = [torch.where(mask, tensor, behind) for tensor in tensors]
    _, clean = with_gradient(function, mask, *tensors)
    _, dirty = with_gradient(function, mask, *junked)
    assert torch.equal(clean, dirty)
    assert dirty[~mask].abs().sum().item() == 0.0


@pytest.mark.parametrize(
    "name", ["whiten", "rescale", "gae", "rloo", "grpo", "reinforce_pp", "shape_rewards k1"]
)
@given(data=st.data(), behind=junk)
def test_s24_padding_of_per_token_results_is_exactly_zero(name, data, behind):
    count, function = FUNCTIONS[name]
    mask, tensors = data.draw(batches(count))
    for result in function(mask, *[torch.where(mask, tensor, behind) for tensor in tensors]):
        assert result[~mask].abs().sum().item() == 0.0


@pytest.mark.parametrize("name", ALL)
@given(data=st.data(), extra=st.integers(1, 4), behind=junk)
def test_s03_wider_right_padding_changes_no_real_token(assert_close, name, data, extra, behind):
    count, function = ALL[name]
    mask, tensors = data.draw(batches(count, holes=False))
    rows, width = mask.shape
    wide_mask = torch.cat([mask, torch.zeros(rows, extra, dtype=torch.bool)], dim=1)
    wide = [
        torch.cat([tensor, torch.full((rows, extra), behind).double()], dim=1) for tensor in tensors
    ]
    for narrow, padded in zip(function(mask, *tensors), function(wide_mask, *wide), strict=True):
        kept = padded[:, :width] if padded.ndim == 2 else padded
        assert_close(kept, narrow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_rows_in_another_order_give_the_same_results_in_that_order(assert_close, name, data):
    count, function = ALL[name]
    mask, tensors = data.draw(batches(count))
    order = torch.tensor(data.draw(st.permutations(range(len(mask)))))
    shuffled = function(mask[order], *[tensor[order] for tensor in tensors])
    for before, after in zip(function(mask, *tensors), shuffled, strict=True):
        assert_close(after, before[order] if before.ndim else before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data(), size=st.integers(1, 4))
def test_s32_micro_batches_change_neither_results_nor_gradient(
    assert_close, name, dtype, data, size
):
    """Also with uneven rows and a last part that is smaller: their sums are the whole step's."""
    count, function = LOSSES[name]
    mask, tensors = data.draw(batches(count))
    # Small ratios: a gradient of size exp(8) has no six digits behind the point in float32.
    tensors = [tensor.to(dtype) / 4 for tensor in tensors]
    tokens = int(mask.sum())
    whole, gradient = with_gradient(function, mask, *tensors)
    parts = [
        with_gradient(function, part[0], *part[1:], normaliser=tokens)
        for part in zip(mask.split(size), *[tensor.split(size) for tensor in tensors], strict=True)
    ]
    assert_close(torch.cat([part[1] for part in parts]), gradient, rtol=0.0, atol=1e-6)
    for index, result in enumerate(whole):
        total = sum(part[0][index] for part in parts)
        assert_close(total, result, rtol=1e-5, atol=1e-6)
