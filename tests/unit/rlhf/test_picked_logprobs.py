"""Log-probabilities with a backward pass by hand: the bits of the plain ones, the gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf import bits
from rlhf.language_model_loss import language_model_loss
from rlhf.logprobs import token_logprobs, token_logprobs_and_entropy
from rlhf.picked_logprobs import (
    is_used_for,
    picked_logprobs,
    picked_logprobs_and_entropy,
    summed_cross_entropy,
)
from tests.finite_differences import assert_gradients_of_finite_differences

IDS = torch.tensor([[2, 0, 4], [1, 1, 3]])


@pytest.fixture(params=["native", "portable"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_in_effect", request.param)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(*shape, generator=draws, dtype=dtype)).requires_grad_()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradients_are_those_of_finite_differences(temperature: float) -> None:
    logits = numbers(2, 3, 5, dtype=torch.float64)

    def logprobs(logits: Tensor) -> Tensor:
        return picked_logprobs(logits, IDS, temperature=temperature)

    def beside_the_entropy(logits: Tensor) -> Tensor:
        return picked_logprobs_and_entropy(logits, IDS, temperature=temperature)[0]

    assert_gradients_of_finite_differences(logprobs, (logits,))
    assert_gradients_of_finite_differences(beside_the_entropy, (logits,))


def test_the_gradients_of_the_cross_entropy_are_those_of_finite_differences() -> None:
    logits = numbers(6, 5, dtype=torch.float64)
    assert_gradients_of_finite_differences(
        lambda z: summed_cross_entropy(z, IDS.flatten()), (logits,)
    )


def plain(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """As the formulas have it: log p of the tokens, and -Σ p log p."""
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    terms = torch.where(log_p == -torch.inf, 0.0, log_p.exp() * log_p)
    return log_p.gather(-1, IDS[..., None]).squeeze(-1), -terms.sum(dim=-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_that_may_not_be_drawn_have_no_part_in_it(
    temperature: float, either: None, assert_close
) -> None:
    """Their logits are -inf: entropy and gradients are finite, theirs 0."""
    weights = numbers(2, 3, seed=1).detach()
    logits = numbers(2, 3, 7).detach()
    logits[..., 5:] = -torch.inf
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()

    found = token_logprobs_and_entropy(ours, IDS, temperature=temperature, train_entropy=False)
    logprobs, entropy = plain(theirs, temperature)
    assert torch.equal(found.logprobs, logprobs)
    assert torch.equal(found.entropy, entropy)
    assert not found.entropy.requires_grad

    (found.logprobs * weights).sum().backward()
    (logprobs * weights).sum().backward()
    assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours.grad[..., 5:], torch.zeros(2, 3, 2))


@pytest.mark.parametrize("masked", [False, True])
def test_a_language_models_loss_keeps_its_bits_and_its_gradients(
    masked: bool, either: None, assert_close
) -> None:
    ours, theirs = numbers(2, 3, 5), numbers(2, 3, 5)
    mask = torch.tensor([[True, True, not masked], [True, True, True]])
    loss = language_model_loss(ours, IDS, mask)
    expected = functional.cross_entropy(theirs[mask], IDS[mask])
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


class Made(TorchDispatchMode):
    """Counts the tensors of a size that operations give in memory of their own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.kept, self.count = size, list[Tensor](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() == self.size:
            self.kept.append(result)  # so that no address comes twice
            before = {each.untyped_storage().data_ptr() for each in args if torch.is_tensor(each)}
            self.count += result.untyped_storage().data_ptr() not in before
        return result


@pytest.mark.parametrize(
    ("loss", "forward"),
    [
        (lambda z: token_logprobs(z, IDS, temperature=1.0).sum(), 1),
        (lambda z: token_logprobs(z, IDS, temperature=0.7).sum(), 2),
        (
            lambda z: token_logprobs_and_entropy(
                z, IDS, temperature=1.0, train_entropy=False
            ).logprobs.sum(),
            2,
        ),
        (lambda z: language_model_loss(z, IDS, torch.ones(2, 3, dtype=torch.bool)), 1),
    ],
    ids=["logprobs", "tempered", "with entropy", "cross-entropy"],
)
def test_no_backward_pass_takes_memory_for_another_tensor_of_logits(
    loss: Callable[[Tensor], Tensor], forward: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "_in_effect", "native")
    logits = numbers(2, 3, 500)
    with Made(logits.numel()) as made:
        total = loss(logits)
        assert made.count == forward
        gradient = torch.autograd.grad(total, logits)[0]
        assert made.count == forward
    assert gradient.abs().sum() > 0


def test_what_a_backward_pass_has_overwritten_is_not_read_by_a_second_one() -> None:
    for result in (
        picked_logprobs(numbers(2, 3, 5), IDS, temperature=1.0),
        summed_cross_entropy(numbers(6, 5), IDS.flatten()),
    ):
        result.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_it_is_used_where_gradients_are_wanted_and_no_recorded_bytes_depend_on_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bits, "_in_effect", "native")
    logits = numbers(2, 3, 5)
    assert is_used_for(logits)
    assert not is_used_for(logits.detach())
    with torch.no_grad():
        assert not is_used_for(logits)
    for others in ("portable", "this processor's own", None):
        monkeypatch.setattr(bits, "_in_effect", others)
        assert not is_used_for(logits)
        assert is_used_for(logits.to("meta"))
