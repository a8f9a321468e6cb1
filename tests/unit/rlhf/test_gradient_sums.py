"""Gradients that are added in place are those that autograd adds up, of every family and loop."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf import gradient_sums
from rlhf.compute import Compute
from rlhf.gradient_sums import added_in_place
from rlhf.lora import add_adapter
from rlhf.params.lora import LoraParams
from rlhf.recomputed_layers import recompute_layers
from rlhf.sft import Example, packed_response_loss, response_loss
from rlhf.sharding import Held
from tests.families import EVERY, SIZES, policy
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS
from tests.training_steps import ppo_steps, reward_steps, sft_steps

ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
EXAMPLES = [Example(prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
CLOSE = {"rtol": 2e-5, "atol": 2e-6}

Steps = Callable[..., tuple[list[torch.Tensor], list[float]]]


@pytest.fixture
def every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight is too small."""
    monkeypatch.setattr(gradient_sums, "SMALLEST", 1)


class Noted(TorchDispatchMode):
    """How often each operation runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def replaced(model: nn.Module) -> list[str]:
    return [name for name, part in model.named_modules() if "forward" in vars(part)]


def summed(lm, *, inside: bool, loss=response_loss, **arguments: Any) -> dict[str, torch.Tensor]:
    """The gradients of two micro-batches."""
    with added_in_place(lm) if inside else contextlib.nullcontext():
        for examples in (EXAMPLES[:2], EXAMPLES[2:]):
            loss(lm, examples, tokens=10, **arguments).backward()
    return {name: weight.grad for name, weight in lm.named_parameters() if weight.grad is not None}


def assert_equal_sums(found, expected, assert_close) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found[name], gradient, **CLOSE)


def llama(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (0,)], ids=str)
def test_a_product_has_the_gradients_of_its_formula(
    every_weight: None, shape: tuple[int, ...], bias: bool, assert_close
) -> None:
    """For y = x W' + b and the gradient g of y: dW = g' x, db = Σ g, dx = g W."""
    layer = nn.Linear(7, 4, bias=bias)
    x, g = numbers(*shape, 7, seed=1).requires_grad_(), numbers(*shape, 4, seed=2)
    before = numbers(4, 7, seed=3)
    layer.weight.grad = before.clone()
    with added_in_place(layer):
        y = layer(x)
        y.backward(g)
    wide, weight = x.detach().double(), layer.weight.detach().double()
    assert_close(y.double(), wide @ weight.T + (layer.bias.double() if bias else 0), **CLOSE)
    rows, inputs = g.double().reshape(-1, 4), wide.reshape(-1, 7)
    assert_close(layer.weight.grad.double(), before.double() + rows.T @ inputs, **CLOSE)
    assert_close(x.grad.double(), g.double() @ weight, **CLOSE)
    if bias:
        assert_close(layer.bias.grad.double(), rows.sum(dim=0), **CLOSE)


def test_an_embedding_adds_up_repeated_ids_and_leaves_the_padding_id(every_weight: None) -> None:
    table = nn.Embedding(6, 2, padding_idx=3)
    ids = torch.tensor([[1, 3, 1], [5, 1, 3]])
    g = torch.arange(12.0).view(2, 3, 2)
    with added_in_place(table):
        rows = table(ids)
        rows.backward(g)
        assert torch.equal(rows, table.weight[ids])
        table(ids[:1, :1]).backward(torch.ones(1, 1, 2))
    expected = torch.zeros(6, 2)
    expected[1] = g[0, 0] + g[0, 2] + g[1, 1] + 1
    expected[5] = g[1, 0]
    assert torch.equal(table.weight.grad, expected)


@pytest.mark.parametrize("family", EVERY)
def test_every_family_has_the_gradients_of_autograd(every_weight: None, family, assert_close):
    plain, ours = policy(family), policy(family)
    expected = summed(plain, inside=False, pad_id=PAD)
    assert_equal_sums(summed(ours, inside=True, pad_id=PAD), expected, assert_close)
    assert replaced(ours) == []


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_heads_that_are_embeddings_too_packed_rows_and_recomputed_layers(
    every_weight: None, tied: bool, assert_close
) -> None:
    plain, ours = (llama(tied=tied) for _ in range(2))
    recompute_layers(ours)
    arguments = {"loss": packed_response_loss, "width": 12}
    expected = summed(plain, inside=False, **arguments)
    assert_equal_sums(summed(ours, inside=True, **arguments), expected, assert_close)


def test_no_gradient_as_large_as_the_vocabulary_is_made_beside_the_sum(every_weight: None) -> None:
    """Not even the first of a head that is the embedding, too, which autograd would add to it."""
    found = []
    for inside in (False, True):
        with Noted() as noted:
            summed(llama(tied=True), inside=inside, pad_id=PAD)
        found.append(noted.calls)
    plain, ours = found
    embedding, added = "aten.embedding_dense_backward.default", "aten.addmm.out"
    assert (plain[embedding], ours[embedding]) == (2, 0)
    assert (plain[added], ours[added]) == (0, 2 * 7 + 1)
    assert ours["aten.zeros_like.default"] == plain["aten.zeros_like.default"]


@pytest.mark.parametrize("steps", [sft_steps, reward_steps, ppo_steps])
def test_every_loop_adds_in_place_and_has_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, steps: Steps, assert_close
) -> None:
    expected, _ = steps(COMPUTE, micro_batch_size=1)
    monkeypatch.setattr(gradient_sums, "SMALLEST", 1)
    with Noted() as noted:
        found, _ = steps(COMPUTE, micro_batch_size=1)
    assert noted.calls["aten.addmm.out"]
    assert len(found) == len(expected)
    # Later steps start from weights that AdamW moves by as much where a gradient is almost zero.
    assert_close(found[0], expected[0], **CLOSE)


def test_a_model_that_lora_adapts_adds_what_is_trained(every_weight: None, assert_close) -> None:
    models = []
    for _ in range(2):
        lm = policy("llama")
        add_adapter(lm, LoraParams(rank=2), torch.Generator().manual_seed(0))
        models.append(lm)
    expected = summed(models[0], inside=False, pad_id=PAD)
    assert expected
    assert all("lora" in name for name in expected)
    assert_equal_sums(summed(models[1], inside=True, pad_id=PAD), expected, assert_close)


class OfAFamily(nn.Linear):
    """A layer whose class may compute something else."""


def left_alone() -> Iterator[tuple[str, nn.Module]]:
    yield "small", nn.Linear(511, 513)
    yield "frozen", nn.Linear(512, 512).requires_grad_(False)
    yield "bfloat16", nn.Linear(512, 512, dtype=torch.bfloat16)
    yield "another class", OfAFamily(512, 512)
    yield "sparse", nn.Embedding(512, 512, sparse=True)
    yield "of a norm at most", nn.Embedding(512, 512, max_norm=1.0)
    yield "divided by counts", nn.Embedding(512, 512, scale_grad_by_freq=True)
    own = nn.Linear(512, 512)
    vars(own)["forward"] = own.forward
    yield "replaced already", own


@pytest.mark.parametrize(("_name", "layer"), [pytest.param(*c, id=c[0]) for c in left_alone()])
def test_what_is_left_to_autograd(_name: str, layer: nn.Module) -> None:
    before = vars(layer).get("forward")
    with added_in_place(layer):
        assert vars(layer).get("forward") is before
    assert vars(layer).get("forward") is before


def test_large_weights_are_taken_and_given_back_after_an_error() -> None:
    model = nn.ModuleList([nn.Linear(512, 512), nn.Embedding(512, 512)])

    def fails_inside() -> None:
        with added_in_place(model):
            assert replaced(model) == ["0", "1"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_inside()
    assert replaced(model) == []


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_steps_in_float32_add_in_place(every_weight: None, precision: Any) -> None:
    model = nn.Linear(4, 4)
    with Held(model).step(Compute(torch.device("cpu"), precision)):
        assert replaced(model) == ([""] if precision == "float32" else [])


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            model = nn.ModuleList([nn.Linear(600, 700), nn.Embedding(700, 600)])
            for number, weight in enumerate(model.parameters()):
                weight.data = numbers(*weight.shape, seed=number)
            with added_in_place(model):
                for rows in (7, 33, 300):
                    ids = numbers(rows, seed=rows).mul(200).long() % 700
                    model[0](model[1](ids)).pow(2).sum().backward()
            found.append([weight.grad for weight in model.parameters()])
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(others, found[0], strict=True))
