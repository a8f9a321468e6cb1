"""Logits from bfloat16 factors have float32 sums; a weight is cast once where none changes."""

import pytest
import torch
from torch import nn

from rlhf import head_products
from rlhf.compute import Compute
from rlhf.head_products import bfloat16_product, keeping_casts, product_in_bfloat16
from tests import ppo_world


def drawn(*shapes: tuple[int, int]) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draws) for shape in shapes]


def test_product_and_gradients_are_those_of_rounded_factors(assert_close) -> None:
    rows, weight, given = drawn((6, 64), (9, 64), (6, 9))
    exact = [each.bfloat16().double() for each in (rows, weight, given)]
    rows.requires_grad_()
    weight.requires_grad_()
    logits = bfloat16_product(rows, weight)
    logits.backward(given)

    assert logits.dtype == torch.float32
    assert_close(logits.detach(), exact[0] @ exact[1].T, rtol=1e-5, atol=1e-5)
    assert_close(rows.grad, exact[2] @ exact[1], rtol=1e-5, atol=1e-5)
    assert_close(weight.grad, exact[2].T @ exact[0], rtol=1e-5, atol=1e-5)


def test_a_logit_keeps_the_digits_of_float32() -> None:
    """62.25 lies between two numbers of bfloat16, whose steps there are of 0.25, and 62.125 too."""
    rows, weight = torch.tensor([[62.0, 0.125]]), torch.ones(1, 2)

    assert bfloat16_product(rows, weight).item() == 62.125


def test_only_what_needs_a_gradient_gets_one() -> None:
    rows, weight = drawn((6, 64), (9, 64))
    weight.requires_grad_()
    bfloat16_product(rows, weight).sum().backward()

    assert rows.grad is None
    assert weight.grad is not None


def test_casts_are_kept_where_no_weight_changes() -> None:
    rows, weight = drawn((6, 64), (9, 64))
    with keeping_casts():
        before = bfloat16_product(rows, weight)
        with keeping_casts():
            weight.add_(1.0)
        assert torch.equal(bfloat16_product(rows, weight), before)
    assert not torch.equal(bfloat16_product(rows, weight), before)


def test_a_step_of_training_keeps_them_in_lower_precision_alone() -> None:
    for precision, kept in (("bfloat16", True), ("float32", False)):
        with Compute(torch.device("cpu"), precision).keeping_casts():
            assert (head_products._kept is not None) == kept
        assert head_products._kept is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_cpu_computes_heads_as_ever(precision: str) -> None:
    layer, (rows,) = nn.Linear(64, 9, bias=False), drawn((6, 64))
    with Compute(torch.device("cpu"), precision).autocast():
        assert product_in_bfloat16(layer, rows) is None


def test_a_gpu_does_in_lower_precision_and_plain_heads_alone(
    monkeypatch: pytest.MonkeyPatch, assert_close
) -> None:
    monkeypatch.setattr(head_products, "DEVICES", ("cpu",))
    lower, layer = Compute(torch.device("cpu"), "bfloat16"), nn.Linear(64, 9, bias=False)
    hidden = drawn((6, 64))[0].view(2, 3, 64)
    assert product_in_bfloat16(layer, hidden) is None
    with lower.autocast():
        assert product_in_bfloat16(nn.Linear(64, 9), hidden) is None
        found = product_in_bfloat16(layer, hidden)

    assert found is not None
    assert found.shape == (2, 3, 9)
    exact = hidden.bfloat16().double() @ layer.weight.detach().bfloat16().double().T
    assert_close(found.detach(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3, 64), (1, 0, 64)])
def test_no_hidden_states_have_no_logits(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more processes than rows some have none."""
    monkeypatch.setattr(head_products, "DEVICES", ("cpu",))
    with Compute(torch.device("cpu"), "bfloat16").autocast():
        found = product_in_bfloat16(nn.Linear(64, 9, bias=False), torch.zeros(shape))
    assert found is not None
    assert found.shape == (*shape[:-1], 9)


def test_the_backward_pass_leaves_kept_casts_of_autocast_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaving an autocast that is the outermost of its thread drops the casts of all threads."""
    rows, weight = drawn((6, 64), (9, 64))
    entered = []
    plain = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: entered.append(1) or plain(*a, **k))
    logits = bfloat16_product(rows.requires_grad_(), weight.requires_grad_())
    logits.sum().backward()

    assert not entered


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_a_round_of_ppo_keeps_its_first_ratio(
    packing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of sampling, scoring and the update are products of the same kind."""
    asked = []

    def counted(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        return bfloat16_product(rows, weight)

    monkeypatch.setattr(head_products, "DEVICES", ("cpu",))
    monkeypatch.setattr(head_products, "bfloat16_product", counted)
    settings = ppo_world.params(packing=packing, micro_batch_size=4)
    lower = Compute(torch.device("cpu"), "bfloat16")
    found = ppo_world.run(ppo_world.fresh(settings), settings, compute=lower)

    assert len(found) == settings.iterations
    assert asked
