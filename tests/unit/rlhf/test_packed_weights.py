"""Packed weights give the products that MKL's give, to rounding, and leave the model as it was."""

import pytest
import torch
from torch import nn

from rlhf import bits, packed_weights
from rlhf.dialogue import Dialogue
from rlhf.generation import sample_responses
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from rlhf.special_ids import special_ids
from tests import families, tiny
from tests.tiny import EOS, PAD, PROMPTS

IDS, MASK = pad_left(PROMPTS, PAD)
STEPS = 12


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native bits, for which no layer is too small."""
    monkeypatch.setattr(bits, "_in_effect", "native")
    monkeypatch.setattr(packed_weights, "SMALLEST", {"AVX2": 1, "AVX512": 1})


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(width: int = 40, rows: int = 23, bias: bool = True) -> nn.Linear:
    made = nn.Linear(width, rows, bias=bias)
    with torch.no_grad():
        for number, weight in enumerate(made.parameters()):
            weight.copy_(drawn(*weight.shape, seed=number))
    return made


def changed(model: nn.Module) -> list[str]:
    """Names of the layers that do not compute as their class does."""
    return [name for name, part in model.named_modules() if "forward" in vars(part)]


def responses(lm) -> list[list[int]]:
    draws = torch.rand(len(IDS), STEPS, generator=torch.Generator().manual_seed(0)).double()
    sampled = sample_responses(
        lm, IDS, MASK, SamplingParams(max_new_tokens=STEPS), stop_ids=[EOS], pad_id=PAD, draws=draws
    )
    return sampled.rows()


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(1, 40), (5, 40), (2, 7, 40), (0, 40)], ids=str)
def test_products_are_those_of_float64(
    shape: tuple[int, ...], bias: bool, native: None, assert_close
) -> None:
    module, x = layer(bias=bias), drawn(*shape, seed=9)
    expected = x.double() @ module.weight.double().T
    if bias:
        expected = expected + module.bias.double()

    with packed_weights.packed_weights(module):
        found = module(x)
        assert changed(module) == [""]

    assert found.dtype == torch.float32
    assert_close(found, expected, rtol=0, atol=2e-5)
    assert changed(module) == []


@torch.no_grad()
def test_a_row_has_the_same_bits_however_many_rows_and_threads_there_are(native: None) -> None:
    module, x = layer(512, 300), drawn(64, 512)
    threads = torch.get_num_threads()
    with packed_weights.packed_weights(module):
        whole = module(x)
        for rows in (1, 2, 7, 8, 16, 33, 63):
            assert torch.equal(module(x[:rows]), whole[:rows])
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                assert torch.equal(module(x), whole)
        finally:
            torch.set_num_threads(threads)


@pytest.mark.parametrize("family", families.EVERY)
def test_every_family_draws_the_same_responses(family: str, native: None, monkeypatch) -> None:
    lm = families.policy(family)
    found = responses(lm)
    assert changed(lm) == []

    monkeypatch.setattr(packed_weights, "SMALLEST", {"AVX2": 2**62, "AVX512": 2**62})
    assert found == responses(lm)


@torch.no_grad()
def test_a_change_of_the_weights_counts_in_the_next_context(native: None) -> None:
    lm = tiny.llama()
    before = responses(lm)
    head = lm.get_output_embeddings().weight
    head.copy_(head.roll(3, dims=0))

    after = responses(lm)

    assert after != before
    assert after == responses(tiny_with(head))


def tiny_with(head: torch.Tensor):
    """A new model with these embeddings."""
    lm = tiny.llama()
    lm.get_output_embeddings().weight.copy_(head)
    return lm


@torch.no_grad()
def test_what_is_not_a_large_plain_layer_in_float32_computes_as_ever(native: None) -> None:
    class Derived(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "plain": layer(),
            "derived": Derived(4, 4),
            "lower": nn.Linear(4, 4, dtype=torch.bfloat16),
            "elsewhere": nn.Linear(4, 4, device="meta"),
            "norm": nn.LayerNorm(4),
        }
    )
    with packed_weights.packed_weights(model):
        assert changed(model) == ["plain"]
        x = drawn(3, 40)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lower = model["plain"](x)
        assert lower.dtype == torch.bfloat16
        assert model["plain"](x).dtype == torch.float32

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model["plain"](x), lower)


@pytest.mark.parametrize("other", ["portable", "this processor's own", None])
def test_other_bits_stay_as_they_are(other, native: None, monkeypatch) -> None:
    monkeypatch.setattr(bits, "_in_effect", other)
    lm = tiny.llama()
    with packed_weights.packed_weights(lm):
        assert changed(lm) == []


def test_a_context_within_another_packs_nothing_again(native: None) -> None:
    module = layer()
    with packed_weights.packed_weights(module):
        outer = module.forward
        with packed_weights.packed_weights(module):
            assert module.forward is outer
        assert module.forward is outer
    assert changed(module) == []


def test_an_error_leaves_the_model_as_it_was(native: None) -> None:
    lm = tiny.llama()
    with pytest.raises(RuntimeError), packed_weights.packed_weights(lm):
        lm.get_output_embeddings()(torch.ones(1, 3))
    assert changed(lm) == []


def test_a_dialogue_packs_once_for_a_response(native: None) -> None:
    tokenizer = tiny.tokenizer()
    lm = tiny.llama(vocabulary=len(tokenizer))
    dialogue = Dialogue(
        lm, tokenizer, SamplingParams(max_new_tokens=60), tokens=special_ids(tokenizer), seed=0
    )
    pieces = dialogue.respond("Sam: where is my parcel?")
    next(pieces)
    first = lm.base_model.layers[0].mlp.up_proj.forward
    next(pieces)
    assert lm.base_model.layers[0].mlp.up_proj.forward is first
    pieces.close()
    assert changed(lm) == []


def test_where_gradients_are_wanted_the_layer_computes_as_ever(native: None) -> None:
    """A dialogue leaves its model so between two pieces of a response."""
    module, x = layer(), drawn(3, 40)
    with packed_weights.packed_weights(module):
        found = module(x)
        found.sum().backward()
    assert torch.equal(found, module(x))
    assert torch.equal(module.weight.grad, x.sum(dim=0).expand_as(module.weight))


@pytest.mark.parametrize(
    ("vectors", "rows", "packed"),
    [
        ("AVX512", 2**9, True),
        ("AVX512", 2**9 - 1, False),
        ("AVX2", 2**9, False),
        ("AVX2", 2**16, True),
        ("DEFAULT", 2**16, False),
    ],
)
def test_which_weights_are_worth_it_depends_on_the_vectors(
    vectors: str, rows: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "_in_effect", "native")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    model = nn.Sequential(nn.Linear(2**8, rows, bias=False))
    with packed_weights.packed_weights(model):
        assert changed(model) == (["0"] if packed else [])
