"""The training step: schedule, clipping, the finite check, and which weight goes to which rule."""

import copy
import math

import pytest
import torch
from torch import nn

from rlhf.optimisers import (
    Optimiser,
    Training,
    read_step,
    require_finite_loss,
    require_finite_norms,
    schedule_factor,
)
from rlhf.params.optimiser import OptimiserParams
from rlhf.stopping import NonFiniteError
from tests import tiny


def params(**changes) -> OptimiserParams:
    return OptimiserParams(**{"warmup_steps": 0, "schedule": "constant", **changes})


def weight_with_gradient(values, gradient) -> nn.Parameter:
    weight = nn.Parameter(torch.tensor(values))
    weight.grad = torch.tensor(gradient)
    return weight


# --- the schedule ------------------------------------------------------------------------------


def factors(total: int, **changes) -> list[float]:
    return [schedule_factor(params(**changes), step, total) for step in range(total + 1)]


def test_s34_the_warm_up_is_linear_and_never_zero(assert_close):
    assert_close(factors(4, warmup_steps=4)[:4], [0.25, 0.5, 0.75, 1.0], rtol=1e-12, atol=0)


def test_s34_a_constant_rate_stays_at_its_peak():
    assert factors(3) == [1.0] * 4


def test_s34_a_linear_rate_falls_to_its_final_fraction(assert_close):
    found = factors(6, warmup_steps=2, schedule="linear", final_fraction=0.2)
    assert_close(found, [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2], rtol=1e-12, atol=0)


def test_s34_a_linear_rate_can_fall_to_zero():
    assert factors(4, schedule="linear", final_fraction=0.0) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_s34_a_cosine_rate_falls_along_half_a_wave(assert_close):
    found = factors(4, schedule="cosine", final_fraction=0.1)
    half = math.sqrt(0.5)
    expected = [1.0, 0.1 + 0.45 * (1 + half), 0.55, 0.1 + 0.45 * (1 - half), 0.1]
    assert_close(found, expected, rtol=1e-12, atol=0)


def test_s34_a_warm_up_as_long_as_the_training_divides_by_nothing():
    assert schedule_factor(params(warmup_steps=5, schedule="linear"), 5, 5) == 1.0


# --- the step ----------------------------------------------------------------------------------


def take_step(optimiser: Optimiser, factor: float = 1.0) -> float:
    """What every loop does once the gradient is there; the gradient's norm."""
    (norm,) = read_step([], 0, [optimiser]).norms
    require_finite_norms([norm])
    optimiser.apply(factor)
    return norm


def test_s34_adamw_adds_its_epsilon_outside_the_root(assert_close):
    """Two steps by hand: the placement inside the root would give other numbers."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    settings = params(lr=0.1, beta1=0.9, beta2=0.99, eps=0.5, max_grad_norm=1e9)
    optimiser = Optimiser(settings, [("w", weight)])
    expected, mean, square = 1.0, 0.0, 0.0
    for count, gradient in enumerate([2.0, -1.0], start=1):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        take_step(optimiser)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        root = math.sqrt(square / (1 - 0.99**count))
        expected -= 0.1 * mean / (1 - 0.9**count) / (root + 0.5)
        assert_close(weight, [expected], rtol=1e-12, atol=0)


def test_s34_gradients_are_scaled_down_to_the_global_norm(assert_close):
    """With beta 0 and epsilon 1 a step is lr g / (|g| + 1); the clipped norm is 1."""
    one = weight_with_gradient([0.0], [6.0])
    other = weight_with_gradient([[0.0]], [[-8.0]])
    settings = params(lr=1.0, beta1=0.0, beta2=0.0, eps=1.0, max_grad_norm=1.0)
    norm = take_step(Optimiser(settings, [("a", one), ("b", other)]))
    assert_close(norm, 10.0, rtol=1e-6, atol=0)
    assert_close(one, [-0.6 / 1.6], rtol=1e-5, atol=0)
    assert_close(other, [[0.8 / 1.8]], rtol=1e-5, atol=0)


def test_s34_small_gradients_are_not_scaled_up(assert_close):
    weight = weight_with_gradient([0.0], [0.5])
    settings = params(lr=1.0, beta1=0.0, beta2=0.0, eps=1.0, max_grad_norm=1.0)
    assert take_step(Optimiser(settings, [("a", weight)])) == 0.5
    assert_close(weight, [-0.5 / 1.5], rtol=1e-5, atol=0)


def test_a_step_is_taken_at_its_fraction_of_the_peak_rate(assert_close):
    weight = weight_with_gradient([0.0], [0.5])
    settings = params(lr=1.0, beta1=0.0, beta2=0.0, eps=1.0)
    take_step(Optimiser(settings, [("a", weight)]), 0.25)
    assert_close(weight, [-0.25 * 0.5 / 1.5], rtol=1e-5, atol=0)


def test_the_gradient_is_gone_after_a_step():
    weight = weight_with_gradient([0.0], [0.5])
    take_step(Optimiser(params(), [("a", weight)]))
    assert weight.grad is None


def test_discarding_forgets_the_gradient_and_changes_nothing():
    weight = weight_with_gradient([3.0], [0.5])
    Optimiser(params(), [("a", weight)]).discard()
    assert weight.grad is None
    assert weight.item() == 3.0


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_s34_a_gradient_that_is_not_finite_stops_before_any_weight_or_moment_moves(name, bad):
    good = weight_with_gradient([[1.0, 2.0], [0.0, 1.0]], [[1.0, 2.0], [0.5, 3.0]])
    broken = weight_with_gradient([3.0, 4.0], [0.1, 0.2])
    optimiser = Optimiser(params(name=name, weight_decay=0.1), [("m", good), ("v", broken)])
    take_step(optimiser)
    weights = [good.detach().clone(), broken.detach().clone()]
    moments = copy.deepcopy(optimiser.state_dict())
    good.grad, broken.grad = torch.ones(2, 2), torch.tensor([bad, 0.0])
    with pytest.raises(NonFiniteError, match="no weight was changed"):
        take_step(optimiser)
    assert torch.equal(good, weights[0])
    assert torch.equal(broken, weights[1])
    assert_same_state(optimiser.state_dict(), moments)


def test_a_step_that_breaks_the_weights_is_noticed_before_the_next_and_before_they_are_saved():
    weight = weight_with_gradient([1.0], [1.0])
    optimiser = Optimiser(params(lr=1e38), [("a", weight)])
    take_step(optimiser, 10.0)
    broken = r"weights is (inf|nan): this model.*checkpoint"
    with pytest.raises(NonFiniteError, match=broken):
        optimiser.require_finite_weights()
    weight.grad = torch.ones(1)
    with pytest.raises(NonFiniteError, match=broken):
        take_step(optimiser)


def test_s34_two_optimisers_can_both_look_before_either_steps():
    one, other = weight_with_gradient([1.0], [1.0]), weight_with_gradient([1.0], [math.nan])
    first, second = Optimiser(params(), [("a", one)]), Optimiser(params(), [("b", other)])
    norms = read_step([], 0, [first, second]).norms
    assert norms[0] == 1.0
    with pytest.raises(NonFiniteError, match="no weight was changed"):
        require_finite_norms(norms)
    assert (one.item(), other.item()) == (1.0, 1.0)


def assert_same_state(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_state(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_state(left, right)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training_with_its_step_and_what_to_try(loss):
    require_finite_loss(1e30, 0)
    with pytest.raises(NonFiniteError, match=f"step 7: the loss is {loss}; no weight .* Try a"):
        require_finite_loss(loss, 6)


def test_weight_decay_is_for_matrices_only(assert_close):
    matrix = weight_with_gradient([[2.0]], [[0.0]])
    vector = weight_with_gradient([2.0], [0.0])
    take_step(Optimiser(params(lr=0.1, weight_decay=0.5), [("m", matrix), ("v", vector)]))
    assert_close(matrix, [[1.9]], rtol=1e-6, atol=0)
    assert vector.item() == 2.0


# --- which weight goes where -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "outside"),
    [
        (tiny.llama(), ("embed_tokens", "norm")),
        (tiny.gpt2(), ("wte", "wpe", "ln_", "bias")),
        (tiny.reward_model(), ("embed_tokens", "norm", "score")),
    ],
    ids=["llama", "gpt2", "reward"],
)
def test_muon_moves_the_hidden_matrices_and_nothing_else(model, outside):
    """AdamW's rate is next to nothing, so what has moved was moved by Muon."""
    before = copy.deepcopy(model.state_dict())
    settings = params(name="muon", lr=1e-30, muon_lr=0.1)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    take_step(Optimiser(settings, model.named_parameters()))
    for name, weight in model.named_parameters():
        moved = bool((weight - before[name]).abs().max() > 1e-6)
        assert moved is not any(part in name for part in outside), name


def test_frozen_weights_are_left_out():
    frozen, free = nn.Parameter(torch.ones(2), requires_grad=False), nn.Parameter(torch.ones(1))
    optimiser = Optimiser(params(), [("a", frozen), ("b", free)])
    assert [weight is free for weight in optimiser.weights] == [True]


# --- what a checkpoint holds -------------------------------------------------------------------


def steps(training: Training, first: int, count: int) -> None:
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        for weight in training.model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        take_step(training.optimiser)
        training.step += 1


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_s55_a_training_resumes_from_its_state_as_if_never_stopped(name):
    def fresh(seed: int) -> Training:
        model = tiny.llama(seed)
        return Training(model, Optimiser(params(name=name), model.named_parameters()))

    whole, first, second = fresh(0), fresh(0), fresh(1)
    steps(whole, 0, 6)
    steps(first, 0, 3)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    steps(second, 3, 3)
    assert second.step == whole.step == 6
    assert_same_state(dict(second.model.state_dict()), dict(whole.model.state_dict()))
    assert_same_state(second.optimiser.state_dict(), whole.optimiser.state_dict())


# --- the step of a loop ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "gradient", "message"),
    [
        (math.nan, 1.0, "step 1: the loss is nan; no weight was changed"),
        (0.5, math.inf, "the global gradient norm is inf; no weight was changed"),
    ],
    ids=["loss", "gradient"],
)
def test_a_loss_or_gradient_that_is_no_number_ends_the_loop_before_anything_moves(
    loss: float, gradient: float, message: str
):
    model = nn.Linear(1, 1, bias=False)
    training = Training(model, Optimiser(params(), model.named_parameters()))
    before = model.weight.detach().clone()
    model.weight.grad = torch.tensor([[gradient]])

    with pytest.raises(NonFiniteError, match=message):
        training.advance([[torch.tensor(loss)]], 1, params(), 9)

    assert torch.equal(model.weight, before)
    assert training.step == 0


def test_a_step_of_a_loop_gives_the_sums_of_its_parts_and_the_norm(assert_close):
    """With beta 0 and epsilon 1 a step is lr g / (|g| + 1)."""
    model = nn.Linear(1, 1, bias=False)
    settings = params(lr=1.0, beta1=0.0, beta2=0.0, eps=1.0, warmup_steps=0, schedule="constant")
    training = Training(model, Optimiser(settings, model.named_parameters()))
    before = model.weight.item()
    model.weight.grad = torch.tensor([[0.5]])

    found = training.advance(
        [[torch.tensor(0.25), torch.tensor(1.0)], [torch.tensor(0.5), torch.tensor(3.0)]],
        2, settings, 9,
    )  # fmt: skip

    assert found == ([0.75, 4.0], [0.5])
    assert training.step == 1
    assert_close(model.weight, [[before - 0.5 / 1.5]], rtol=1e-6, atol=0)
