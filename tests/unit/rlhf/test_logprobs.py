"""Log-probabilities and entropy against numpy in float64."""

import math

import numpy as np
import pytest
import torch

from rlhf.logprobs import token_logprobs, token_logprobs_and_entropy
from rlhf.masked import masked_mean
from tests import pretended_device
from tests.pretended_device import OnDevice

LOGITS = np.array([[[0.5, -1.0, 2.0], [3.0, 0.0, 0.1]], [[1.0, 1.0, 1.0], [-2.0, 4.0, 0.3]]])
IDS = torch.tensor([[2, 0], [1, 2]])


def entropy(logits: torch.Tensor, *, temperature: float) -> torch.Tensor:
    ids = torch.zeros(logits.shape[:2], dtype=torch.long)
    return token_logprobs_and_entropy(logits, ids, temperature=temperature).entropy


def probabilities(temperature: float) -> np.ndarray:
    weights = np.exp(LOGITS / temperature)
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_s05_logprobs_are_the_log_of_the_tempered_softmax(assert_close, temperature):
    found = token_logprobs(torch.from_numpy(LOGITS), IDS, temperature=temperature)
    rows, columns = np.indices((2, 2))
    expected = np.log(probabilities(temperature)[rows, columns, IDS.numpy()])
    assert_close(found, expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_s31_entropy_is_of_the_same_tempered_distribution_as_the_logprobs(
    assert_close, temperature
):
    """Peer defect 8: entropy at another temperature than the logprobs."""
    p = probabilities(temperature)
    found = entropy(torch.from_numpy(LOGITS), temperature=temperature)
    assert_close(found, -(p * np.log(p)).sum(axis=-1), rtol=1e-12, atol=0.0)


def test_s31_entropy_lies_between_zero_and_log_vocabulary(assert_close):
    even = torch.zeros(1, 1, 50)
    certain = torch.full((1, 1, 50), -100.0)
    certain[0, 0, 3] = 100.0
    assert_close(entropy(even, temperature=0.7), [[math.log(50)]], rtol=1e-6, atol=0.0)
    assert_close(entropy(certain, temperature=1.0), [[0.0]], rtol=0.0, atol=1e-12)


def test_s31_mean_entropy_leaves_the_padding_out(assert_close):
    """Peer defect 3: padding counted as -1 turned an entropy of 1.5 into -1.5."""
    logits = torch.zeros(1, 8, 4)
    mask = torch.tensor([[True, True] + [False] * 6])
    logits[0, 2:, 0] = math.nan
    found = masked_mean(entropy(logits, temperature=1.0), mask)
    assert_close(found, math.log(4), rtol=1e-6, atol=0.0)


def test_logprobs_beside_the_entropy_are_those_without_it():
    logits = torch.from_numpy(LOGITS)
    both = token_logprobs_and_entropy(logits, IDS, temperature=0.8)
    assert torch.equal(both.logprobs, token_logprobs(logits, IDS, temperature=0.8))


def test_a_forbidden_token_adds_nothing_to_entropy_or_gradient(assert_close):
    logits = torch.tensor([[[0.0, 0.0, -math.inf]]], requires_grad=True)
    found = entropy(logits, temperature=1.0)
    found.sum().backward()
    assert_close(found, [[math.log(2)]], rtol=1e-6, atol=0.0)
    assert_close(logits.grad, [[[0.0, 0.0, 0.0]]], rtol=0.0, atol=1e-6)


def test_half_precision_logits_are_read_in_single_precision(assert_close):
    logits = torch.linspace(-3, 3, 2000).reshape(1, 1, 2000).bfloat16()
    ids = torch.tensor([[1234]])
    found = token_logprobs_and_entropy(logits, ids, temperature=0.9)
    exact = token_logprobs_and_entropy(logits.double(), ids, temperature=0.9)
    assert found.logprobs.dtype == found.entropy.dtype == torch.float32
    assert_close(found.logprobs, exact.logprobs, rtol=1e-5, atol=0.0)
    assert_close(found.entropy, exact.entropy, rtol=1e-5, atol=0.0)


def test_very_large_logits_do_not_overflow(assert_close):
    logits = torch.tensor([[[1000.0, 999.0]]], dtype=torch.float64)
    found = token_logprobs(logits, torch.tensor([[1]]), temperature=1.0)
    assert_close(found, [[-1.0 - math.log1p(math.exp(-1))]], rtol=1e-12, atol=0.0)


def test_the_gradient_of_a_logprob_is_one_hot_minus_softmax(assert_close):
    logits = torch.from_numpy(LOGITS).requires_grad_()
    token_logprobs(logits, IDS, temperature=2.0).sum().backward()
    expected = (np.eye(3)[IDS.numpy()] - probabilities(2.0)) / 2.0
    assert_close(logits.grad, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.from_numpy(LOGITS), IDS, temperature=temperature)


def test_logits_are_not_changed_in_place():
    logits = torch.from_numpy(LOGITS.copy())
    token_logprobs_and_entropy(logits, IDS, temperature=0.3)
    assert np.array_equal(logits.numpy(), LOGITS)


def test_s31_an_entropy_without_gradient_has_the_value_of_one_with():
    logits = torch.from_numpy(LOGITS).requires_grad_()
    ids = torch.zeros(LOGITS.shape[:-1], dtype=torch.int64)
    one = token_logprobs_and_entropy(logits, ids, temperature=1.0)
    other = token_logprobs_and_entropy(logits, ids, temperature=1.0, train_entropy=False)
    assert torch.equal(one.entropy, other.entropy)
    assert one.entropy.requires_grad
    assert not other.entropy.requires_grad
    assert other.logprobs.requires_grad


def test_a_device_gives_the_numbers_and_gradients_of_a_cpu_and_is_not_waited_for():
    expected, found = (torch.from_numpy(LOGITS.copy()) for _ in range(2))

    def work(logits, ids):
        logits.requires_grad_()
        numbers = token_logprobs_and_entropy(logits, ids, temperature=0.7)
        (numbers.logprobs.square() + numbers.entropy).sum().backward()
        return [numbers.logprobs.detach(), numbers.entropy.detach(), logits.grad]

    expected = work(expected, IDS)
    with pretended_device.waits() as waits:
        found = work(OnDevice(found), OnDevice(IDS))
        assert waits == []
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.inner, other)
