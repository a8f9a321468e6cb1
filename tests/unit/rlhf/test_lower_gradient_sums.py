"""Gradients that a GPU adds up in float32 are those of the bfloat16 factors, in every loop.

Here a CPU stands for it: the products are the same, of factors rounded in the same places.
"""

import contextlib

import pytest
import torch
from torch import nn

from rlhf import head_products, lower_gradient_sums
from rlhf.compute import Compute
from rlhf.lora import add_adapter
from rlhf.lower_gradient_sums import added_in_float32
from rlhf.params.lora import LoraParams
from rlhf.pass_recordings import no_kept_casts
from rlhf.recomputed_layers import recompute_layers
from rlhf.sft import Example, response_loss
from rlhf.sharding import Held
from tests.families import policy
from tests.tiny import EOS, PAD, PROMPTS

LOWER = Compute(torch.device("cpu"), "bfloat16")
ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
EXAMPLES = [Example(prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_gradient_sums, "DEVICES", ("cpu",))
    monkeypatch.setattr(lower_gradient_sums, "SMALLEST", 1)


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (0,)], ids=str)
def test_a_product_has_the_gradients_of_its_formula(
    shape: tuple[int, ...], bias: bool, assert_close
) -> None:
    """For y = x W' + b and the gradient g of y: dW = g' x, db = Σ g, dx = g W, rounded."""
    layer = nn.Linear(7, 4, bias=bias)
    x, g = numbers(*shape, 7, seed=1).requires_grad_(), numbers(*shape, 4, seed=2).bfloat16()
    before = numbers(4, 7, seed=3)
    layer.weight.grad = before.clone()
    with LOWER.autocast(), added_in_float32(layer):
        y = layer(x)
    y.backward(g)

    inputs, weight = (each.detach().bfloat16().double() for each in (x, layer.weight))
    rows = g.double().reshape(-1, 4)
    expected = before.double() + rows.T @ inputs.reshape(-1, 7)
    assert layer.weight.grad.dtype == torch.float32
    assert_close(layer.weight.grad.double(), expected, rtol=1e-6, atol=1e-6)
    sums = inputs @ weight.T + (layer.bias.detach().double() if bias else 0)
    for found, exact in ((x.grad, g.double() @ weight), (y, sums)):  # 8 bits of each number.
        assert (found.double() - exact).norm() <= 2**-8 * exact.norm()
    if bias:
        assert_close(layer.bias.grad.double(), rows.sum(dim=0), rtol=1e-6, atol=1e-6)


def gradients(lm, *, ours: bool) -> dict[str, torch.Tensor]:
    """Of two micro-batches of a step."""
    around = Held(lm).step(LOWER) if ours else LOWER.keeping_casts()
    with around:
        for examples in (EXAMPLES[:2], EXAMPLES[2:]):
            with LOWER.autocast():
                loss = response_loss(lm, examples, pad_id=PAD, tokens=10)
            loss.backward()
    return {name: weight.grad for name, weight in lm.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("changed", ["plain", "recomputed", "adapter"])
@pytest.mark.parametrize("family", ["gpt_neox", "llama", "phi", "qwen2"])
def test_models_have_the_gradients_of_autograd_up_to_its_rounding(
    family: str, changed: str
) -> None:
    """autograd rounds each gradient of a weight to bfloat16's 8 bits."""

    def made():
        lm = policy(family)
        if changed == "adapter":
            add_adapter(lm, LoraParams(rank=2), torch.Generator().manual_seed(0))
        if changed == "recomputed":
            recompute_layers(lm)
        return lm

    found, expected = gradients(made(), ours=True), gradients(made(), ours=False)

    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 0.01 * gradient.norm(), name
    differing = [name for name in found if not torch.equal(found[name], expected[name])]
    assert differing  # They are not rounded twice.


def test_layers_get_their_own_passes_back_and_heads_keep_them() -> None:
    lm = policy("llama")
    with contextlib.suppress(KeyError), added_in_float32(lm):
        inside = [name for name, part in lm.named_modules() if "forward" in vars(part)]
        raise KeyError
    assert len(inside) == 15  # Seven of each layer, and the head's, which autocast leaves alone.
    assert not any("forward" in vars(part) for part in lm.modules())

    head, hidden = lm.get_output_embeddings(), numbers(2, 32, seed=1)
    with added_in_float32(lm):
        logits = head(hidden)
    assert torch.equal(logits, head(hidden))
    assert logits.dtype == torch.float32


def test_weights_that_are_not_trained_or_not_there_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def replaced(layer: nn.Module) -> bool:
        with added_in_float32(layer):
            return "forward" in vars(layer)

    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert replaced(nn.Linear(2, 2))
    assert not any(map(replaced, [frozen, nn.Linear(2, 2).bfloat16(), nn.Embedding(2, 2)]))
    monkeypatch.setattr(lower_gradient_sums, "SMALLEST", 5)
    assert not replaced(nn.Linear(2, 2))
    monkeypatch.setattr(lower_gradient_sums, "SMALLEST", 4)
    assert replaced(nn.Linear(2, 2))
    monkeypatch.setattr(lower_gradient_sums, "DEVICES", ("cuda",))
    assert not replaced(nn.Linear(2, 2))


def test_a_recording_casts_for_itself() -> None:
    """A cast that is kept is dropped after the step; what was recorded would read its memory."""
    weight = nn.Parameter(numbers(2, 2, seed=0))
    with head_products.keeping_casts():
        kept = head_products.in_bfloat16(weight)
        with no_kept_casts():
            assert head_products.in_bfloat16(weight) is not kept
        assert head_products.in_bfloat16(weight) is kept
