"""Norms, rotations and gates differentiated by hand: the bits of the forward pass, the gradients.

Those of autograd for every family, and in double precision those of finite differences.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM
from transformers.models.llama import modeling_llama

from rlhf import bits
from rlhf.recomputed_layers import recompute_layers
from rlhf.sft import Example, response_loss
from rlhf.sharding import Held
from rlhf.shorter_backward import ROTATION, _Gate, _Norm, _Rotation, shorter_backward
from tests.families import EVERY, policy
from tests.finite_differences import assert_gradients_of_finite_differences
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS

CPU = torch.device("cpu")
ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
EXAMPLES = [Example(prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
ALL = ("granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3")
UP = "model.layers.0.mlp.up_proj.weight"
USED = {family: {"_Norm", "_Rotation", "_Gate"} for family in ALL}
USED |= {"phi3": {"_Norm"}, "gemma": {"_Rotation"}, "cohere": {"_Gate"}}
"""What of each family is differentiated so; nothing of the others."""


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_in_effect", "native")


def numbers(*shape: int, seed: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draws, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 3, 5)], ids=str)
def test_a_norm_has_the_gradients_of_finite_differences(shape: tuple[int, ...]) -> None:
    x, weight = numbers(*shape, seed=1), numbers(5, seed=2)
    apply = _Norm.apply
    assert_gradients_of_finite_differences(lambda x, w: apply(x.view(-1, 5), w, 1e-2), (x, weight))


def test_a_rotation_has_the_gradients_of_finite_differences() -> None:
    """Of any angles, not only of those that are the same in both halves."""
    x = numbers(2, 3, 4, 6, seed=1)
    cos, sin = (numbers(2, 4, 6, seed=seed).detach() for seed in (2, 3))
    assert_gradients_of_finite_differences(lambda x: _Rotation.apply(x, cos, sin), (x,))


def test_a_gate_has_the_gradients_of_finite_differences() -> None:
    gate, values = numbers(2, 3, 4, seed=1), numbers(2, 3, 4, seed=2)
    assert_gradients_of_finite_differences(_Gate.apply, (gate, values))


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_a_gate_larger_than_a_threads_share_has_the_gradients_of_autograd(
    layout: str, assert_close
) -> None:
    gate, values, weight = (numbers(300, 301, seed=seed).float().detach() for seed in (1, 2, 3))
    if layout == "transposed":
        gate, values, weight = gate.t(), values.t(), weight.t()
    gate, values = gate.requires_grad_(), values.requires_grad_()
    product = torch.nn.functional.silu(gate) * values
    expected = torch.autograd.grad(product, (gate, values), weight)
    found = torch.autograd.grad(_Gate.apply(gate, values), (gate, values), weight)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_what_a_backward_pass_has_overwritten_is_not_read_by_a_second_one() -> None:
    gate, values = numbers(3, 4, seed=1), numbers(3, 4, seed=2)
    x, weight = numbers(3, 4, seed=3), numbers(4, seed=4)
    for result in (_Gate.apply(gate, values), _Norm.apply(x, weight, 1e-2)):
        result.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def gradients(lm: nn.Module) -> tuple[float, dict[str, torch.Tensor]]:
    loss = response_loss(lm, EXAMPLES, pad_id=PAD, tokens=10)
    loss.backward()
    named = lm.named_parameters()
    return loss.item(), {name: weight.grad for name, weight in named if weight.grad is not None}


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", EVERY)
def test_every_family_has_the_loss_to_the_bit_and_the_gradients_of_autograd(
    family: str, recompute: bool, native: None, assert_close
) -> None:
    plain, ours = policy(family), policy(family)
    if recompute:
        recompute_layers(ours)
    loss, expected = gradients(plain)
    used: set[str] = set()
    with Held(ours).step(COMPUTE), counted(used):
        found_loss, found = gradients(ours)

    assert found_loss == loss
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found[name], gradient, rtol=2e-5, atol=2e-6)
    assert used == USED.get(family, set())


@contextlib.contextmanager
def counted(used: set[str]) -> Iterator[None]:
    """Note in `used` which of ours are asked for."""

    def noting(one: Any) -> Callable[..., Any]:
        plain = one.apply

        def apply(*args: Any) -> Any:
            used.add(one.__name__)
            return plain(*args)

        return apply

    with pytest.MonkeyPatch.context() as patch:
        for one in (_Norm, _Rotation, _Gate):
            patch.setattr(one, "apply", noting(one))
        yield


def test_frozen_norms_get_no_gradient(native: None) -> None:
    lm = policy("llama")
    lm.model.norm.requires_grad_(False)
    with shorter_backward(lm):
        gradients(lm)
    assert lm.model.norm.weight.grad is None
    assert lm.model.layers[0].input_layernorm.weight.grad is not None


def test_a_gate_of_another_activation_function_keeps_its_own(native: None, assert_close) -> None:
    config = policy("llama").config
    config.hidden_act = "gelu"
    plain, ours = LlamaForCausalLM(config), LlamaForCausalLM(config)
    ours.load_state_dict(plain.state_dict())
    used: set[str] = set()
    loss, expected = gradients(plain)
    with shorter_backward(ours), counted(used):
        found_loss, found = gradients(ours)
    assert found_loss == loss
    assert_close(found[UP], expected[UP], rtol=2e-5, atol=2e-6)
    assert used == {"_Norm", "_Rotation"}


def replaced(lm: nn.Module) -> list[object]:
    norms = [name for name, part in lm.named_modules() if "forward" in vars(part)]
    return [norms, vars(modeling_llama)[ROTATION]]


@pytest.mark.parametrize("error", [None, KeyError])
def test_norms_and_the_family_get_their_own_back(error, native: None) -> None:
    lm = policy("llama")
    before = replaced(lm)
    try:
        with shorter_backward(lm), shorter_backward(policy("llama")):
            inside = replaced(lm)
            if error:
                raise error
    except KeyError:
        pass
    assert len(inside[0]) == 7
    assert inside[1] is not before[1]
    assert replaced(lm) == before


def test_portable_bits_and_lower_precision_keep_autograds(monkeypatch: pytest.MonkeyPatch) -> None:
    lm, used = policy("llama"), set[str]()
    monkeypatch.setattr(bits, "_in_effect", "portable")
    with shorter_backward(lm), counted(used):
        gradients(lm)
    monkeypatch.setattr(bits, "_in_effect", "native")
    with shorter_backward(lm), counted(used), torch.autocast("cpu", dtype=torch.bfloat16):
        gradients(lm)
    with shorter_backward(lm), counted(used), torch.no_grad():
        lm(input_ids=torch.tensor([[3, 4]]))
    assert used == set()
