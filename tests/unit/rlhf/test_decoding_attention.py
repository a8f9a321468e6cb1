"""One query a row attends as in transformers, whatever the family, the padding and shared heads."""

import contextlib
import math
import sys
import types

import pytest
import torch

import rlhf
from rlhf import bits, decoding_attention
from rlhf.attention_masks import TAKE_ANY_MASK, takes_any_mask
from rlhf.decoding_attention import NAME, recorded_attention
from rlhf.decoding_cache import decoding_cache
from rlhf.generation import next_logits, sample_responses
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from tests import families
from tests.tiny import EOS, PAD, PROMPTS

IDS, MASK = pad_left(PROMPTS, PAD)
EQUAL = torch.tensor([[5, 6, 7], [8, 9, 10], [4, 3, 2]])
STEPS = 6


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The queries of each call of ours."""
    found: list[int] = []
    ours = decoding_attention.attend

    def noted(module, query, *args, **kwargs):
        found.append(query.shape[2])
        return ours(module, query, *args, **kwargs)

    monkeypatch.setitem(decoding_attention.AttentionInterface._global_mapping, NAME, noted)
    return found


def logits_of_steps(lm, *, padded: bool = True) -> torch.Tensor:
    """(steps, rows, vocabulary): after the prompts, then after one token more each time."""
    ids, seen = (IDS, MASK) if padded else (EQUAL, torch.ones_like(EQUAL, dtype=torch.bool))
    cache = decoding_cache(lm, ids.shape[1] + STEPS)
    found = []
    for step in range(STEPS):
        found.append(next_logits(lm, ids, seen, cache, padded=padded))
        ids = torch.full((len(seen), 1), 2 + step)
        seen = torch.cat([seen, seen.new_ones(len(seen), 1)], dim=1)
    return torch.stack(found)


@torch.no_grad()
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("family", sorted(TAKE_ANY_MASK))
def test_native_logits_are_those_of_torchs_kernel(
    family: str, padded: bool, calls: list[int], assert_close, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = families.policy(family)
    expected = logits_of_steps(lm, padded=padded)
    assert calls == []

    monkeypatch.setattr(bits, "_in_effect", "native")
    found = logits_of_steps(lm, padded=padded)

    layers = lm.config.num_hidden_layers
    ours = takes_any_mask(lm.base_model)
    assert ours is (family != "mistral")  # It looks back so far only.
    assert calls == ([1] * (STEPS - 1) * layers if ours else [])
    assert_close(found, expected, rtol=0, atol=2e-5)
    assert lm.config._attn_implementation == "sdpa"


def test_only_a_gpu_in_bfloat16_has_the_kernel_of_our_own() -> None:
    lm = families.policy("llama")
    assert recorded_attention(lm, torch.zeros(1, 2, 3, 16, dtype=torch.bfloat16)) is None
    on_a_gpu = torch.zeros(1, 2, 3, 16, device="meta")
    assert recorded_attention(lm, on_a_gpu) is None


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (0.004, None),
        (0.5, r"does not work here, its results are 0\.500 away from torch's"),
        (math.nan, "its results are nan away"),
        (OSError("no C compiler"), "does not work here, no C compiler"),
    ],
    ids=str,
)
def test_the_kernel_is_taken_where_it_has_run_and_was_right(
    gap: float | Exception, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module stands for ours, which only a machine with triton can import."""
    asked = []

    def gap_to_torch(*shape: int) -> float:
        asked.append(shape)
        if isinstance(gap, Exception):
            raise gap
        return gap

    ours = types.SimpleNamespace(NAME="ours", gap_to_torch=gap_to_torch)
    monkeypatch.setitem(sys.modules, "rlhf.gpu_attention", ours)
    monkeypatch.setattr(rlhf, "gpu_attention", ours, raising=False)
    decoding_attention._kernel_for.cache_clear()
    with pytest.warns(match=said) if said else contextlib.nullcontext():
        found = [decoding_attention._kernel_for(8, 2, 64) for _ in range(2)]
    decoding_attention._kernel_for.cache_clear()

    assert found == [None if said else "ours"] * 2
    assert asked == [(8, 2, 64)]  # Once, and said once.


@pytest.mark.parametrize("family", ["falcon", "gemma2", "gpt2"])
def test_other_families_keep_their_own(
    family: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "_in_effect", "native")

    with torch.no_grad():
        logits_of_steps(families.policy(family))

    assert calls == []


@torch.no_grad()
def test_lower_precision_keeps_torchs_kernel(assert_close, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = families.policy("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = logits_of_steps(lm)
        monkeypatch.setattr(bits, "_in_effect", "native")
        found = logits_of_steps(lm)

    assert torch.equal(found, expected)


def test_responses_are_the_same_and_an_error_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = families.policy("llama")
    draws = torch.rand(len(IDS), 12, generator=torch.Generator().manual_seed(0)).double()

    def responses() -> list[list[int]]:
        sampled = sample_responses(
            lm, IDS, MASK, SamplingParams(max_new_tokens=12), stop_ids=[EOS], pad_id=PAD,
            draws=draws,
        )  # fmt: skip
        return sampled.rows()

    expected = responses()
    monkeypatch.setattr(bits, "_in_effect", "native")
    assert responses() == expected
    # Prompts that are read a column at a time; in the first one, padding sees nothing.
    monkeypatch.setattr("rlhf.pass_sizes.MOST_READ", 1)
    assert responses() == expected

    monkeypatch.setattr(lm.base_model, "forward", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next_logits(lm, IDS[:, :1], MASK[:, :1], decoding_cache(lm, 9))
    assert lm.config._attn_implementation == "sdpa"
