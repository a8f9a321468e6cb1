"""The Bradley-Terry loss against its formula in numpy."""

import math

import numpy as np
import pytest
import torch

from rlhf.preference_loss import preference_loss


def scores(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


CHOSEN, REJECTED = scores(1.0, 0.2, -0.5), scores(0.0, 0.7, -0.5)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def test_s40_preference_loss_is_minus_log_sigmoid_of_the_gap(assert_close):
    found = preference_loss(CHOSEN, REJECTED)
    gaps = np.array([1.0, -0.5, 0.0])
    assert_close(found.loss, softplus(-gaps).mean(), rtol=1e-12, atol=0.0)
    assert_close(found.accuracy, (1 + 0 + 0.5) / 3, rtol=1e-12, atol=0.0)
    assert_close(found.margin, gaps.mean(), rtol=1e-12, atol=0.0)


def test_s40_equal_scores_cost_log_two(assert_close):
    assert_close(preference_loss(CHOSEN, CHOSEN).loss, math.log(2), rtol=1e-12, atol=0.0)


def test_s40_swapping_the_labels_flips_the_margin_and_a_shift_changes_nothing(assert_close):
    found = preference_loss(CHOSEN, REJECTED)
    assert_close(preference_loss(REJECTED, CHOSEN).margin, -found.margin, rtol=1e-12, atol=0.0)
    shifted = preference_loss(CHOSEN + 40, REJECTED + 40)
    assert_close(shifted.loss, found.loss, rtol=1e-9, atol=0.0)


def test_s40_the_gradient_is_antisymmetric_and_that_of_the_logistic(assert_close):
    chosen, rejected = CHOSEN.clone().requires_grad_(), REJECTED.clone().requires_grad_()
    preference_loss(chosen, rejected).loss.backward()
    gaps = np.array([1.0, -0.5, 0.0])
    assert_close(chosen.grad, -1 / (1 + np.exp(gaps)) / 3, rtol=1e-12, atol=0.0)
    assert torch.equal(chosen.grad, -rejected.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("gap", "loss", "gradient"), [(1000.0, 0.0, 0.0), (-1000.0, 1000.0, -1.0)])
def test_s40_a_gap_of_a_thousand_is_stable(assert_close, gap, loss, gradient, dtype):
    chosen = torch.tensor([gap], dtype=dtype, requires_grad=True)
    found = preference_loss(chosen, torch.zeros(1, dtype=dtype)).loss
    found.backward()
    assert_close(found, loss, rtol=1e-6, atol=1e-12)
    assert_close(chosen.grad, [gradient], rtol=1e-6, atol=1e-12)


def test_s40_a_margin_is_subtracted_from_the_gap(assert_close):
    found = preference_loss(CHOSEN, REJECTED, margins=scores(0.5, 0.0, 2.0))
    expected = softplus(-np.array([0.5, -0.5, -2.0])).mean()
    assert_close(found.loss, expected, rtol=1e-12, atol=0.0)
    assert_close(found.margin, (1.0 - 0.5) / 3, rtol=1e-12, atol=0.0)


def test_weights_make_a_weighted_mean_of_every_result(assert_close):
    found = preference_loss(CHOSEN, REJECTED, weights=scores(3.0, 1.0, 0.0), centring_coef=0.1)
    terms = softplus(-np.array([1.0, -0.5])) + 0.1 * np.array([1.0, 0.9]) ** 2
    assert_close(found.loss, (3 * terms[0] + terms[1]) / 4, rtol=1e-12, atol=0.0)
    assert_close(found.accuracy, 0.75, rtol=1e-12, atol=0.0)
    assert_close(found.margin, (3 * 1.0 - 0.5) / 4, rtol=1e-12, atol=0.0)


def test_weights_that_sum_to_zero_are_refused():
    with pytest.raises(ValueError, match="weights"):
        preference_loss(CHOSEN, REJECTED, weights=scores(0.0, 0.0, 0.0))


def test_label_smoothing_moves_mass_to_the_other_side(assert_close):
    found = preference_loss(scores(2.0), scores(0.0), label_smoothing=0.1)
    expected = 0.9 * math.log1p(math.exp(-2.0)) + 0.1 * math.log1p(math.exp(2.0))
    assert_close(found.loss, expected, rtol=1e-12, atol=0.0)


def test_s43_a_tie_counts_as_half_of_each_order(assert_close):
    """Never a random preference: its loss is least at equal scores, and it has no accuracy."""
    tie = preference_loss(CHOSEN, REJECTED, soft_labels=scores(0.5, 0.5, 0.5))
    both = preference_loss(CHOSEN, REJECTED).loss + preference_loss(REJECTED, CHOSEN).loss
    assert_close(tie.loss, both / 2, rtol=1e-12, atol=0.0)
    assert tie.accuracy.item() == 0.5
    chosen = scores(0.7).requires_grad_()
    preference_loss(chosen, scores(0.7), soft_labels=scores(0.5)).loss.backward()
    assert chosen.grad.tolist() == [0.0]


def test_s43_ties_are_left_out_of_the_accuracy(assert_close):
    found = preference_loss(CHOSEN, REJECTED, soft_labels=scores(1.0, 0.5, 0.5))
    assert_close(found.accuracy, 1.0, rtol=1e-12, atol=0.0)


def test_s43_a_soft_label_below_half_prefers_the_other_response(assert_close):
    found = preference_loss(CHOSEN, REJECTED, soft_labels=scores(0.0, 0.0, 0.0))
    swapped = preference_loss(REJECTED, CHOSEN)
    assert_close(found.loss, swapped.loss, rtol=1e-12, atol=0.0)
    assert_close(found.accuracy, swapped.accuracy, rtol=1e-12, atol=0.0)


def test_s43_labels_of_both_directions_add_up_to_one_accuracy(assert_close):
    """Gaps of 1, -½ and 0: right, right the other way round, undecided."""
    found = preference_loss(CHOSEN, REJECTED, soft_labels=scores(1.0, 0.2, 1.0))
    assert_close(found.accuracy, (1 + 1 + 0.5) / 3, rtol=1e-12, atol=0.0)


def test_only_the_loss_has_a_gradient():
    found = preference_loss(CHOSEN.clone().requires_grad_(), REJECTED)
    assert (found.loss.requires_grad, found.accuracy.requires_grad, found.margin.requires_grad) == (
        True,
        False,
        False,
    )


def test_smoothing_leaves_a_tie_a_tie(assert_close):
    tie = scores(0.5, 0.5, 0.5)
    smooth = preference_loss(CHOSEN, REJECTED, soft_labels=tie, label_smoothing=0.2)
    plain = preference_loss(CHOSEN, REJECTED, soft_labels=tie)
    assert_close(smooth.loss, plain.loss, rtol=1e-12, atol=0.0)


def test_s47_the_centring_term_is_the_mean_squared_sum_of_the_scores(assert_close):
    plain = preference_loss(CHOSEN, REJECTED).loss
    centred = preference_loss(CHOSEN, REJECTED, centring_coef=0.01).loss
    expected = 0.01 * np.mean(np.array([1.0, 0.9, -1.0]) ** 2)
    assert_close(centred - plain, expected, rtol=1e-9, atol=0.0)
