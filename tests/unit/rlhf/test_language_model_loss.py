"""The next-token loss: its formula in numpy, and what stands behind the mask."""

import numpy as np
import torch
from torch.nn import functional

from rlhf.language_model_loss import language_model_loss

MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])


def test_f51_language_model_loss_is_the_mean_of_minus_log_p_under_the_mask(assert_close):
    logits = np.random.default_rng(0).normal(size=(2, 4, 5))
    labels = np.array([[1, 4, 0, -100], [2, 2, -100, 77]])
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    rows, columns = np.nonzero(MASK.numpy())
    expected = -log_p[rows, columns, labels[rows, columns]].mean()
    found = language_model_loss(torch.from_numpy(logits), torch.from_numpy(labels), MASK)
    assert_close(found, expected, rtol=1e-12, atol=0.0)


def test_f51_labels_behind_the_mask_change_nothing():
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(2, 4, dtype=torch.long)
    altered = torch.where(MASK, labels, -100)
    assert language_model_loss(logits, labels, MASK) == language_model_loss(logits, altered, MASK)


def test_a_mask_without_padding_gives_the_bits_of_picking_each_token():
    draws = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 7, 11, generator=draws).requires_grad_()
    labels = torch.randint(11, (3, 7), generator=draws)
    everywhere = torch.ones(3, 7, dtype=torch.bool)
    found = language_model_loss(logits, labels, everywhere)
    picked = logits[everywhere]
    expected = functional.cross_entropy(picked, labels[everywhere], reduction="sum") / 21
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(loss, logits)[0] for loss in (found, expected)))


def test_half_precision_logits_give_a_single_precision_loss():
    logits, labels = torch.zeros(2, 4, 5, dtype=torch.bfloat16), torch.zeros(2, 4, dtype=torch.long)
    assert language_model_loss(logits, labels, MASK).dtype == torch.float32
