"""The masks that are made here are those that transformers would have made."""

import pytest
import torch
from transformers.masking_utils import create_causal_mask

from rlhf.attention_masks import (
    TAKE_ANY_MASK,
    UNMASKED,
    WITHIN,
    attending_as,
    mask_from_host,
    visible_in_packed,
)
from rlhf.packing import packed_positions
from rlhf.padding import pad_left, pad_right, position_ids
from tests import families
from tests.tiny import PAD, PROMPTS

CPU = torch.device("cpu")
EQUAL = [[5, 6, 7], [8, 9, 10]]
TRUNK = families.policy("llama").base_model


def theirs(mask: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor | None:
    return create_causal_mask(
        config=TRUNK.config,
        inputs_embeds=torch.empty(*positions.shape, 0),
        attention_mask=None if mask is None else mask.long(),
        past_key_values=None,
        position_ids=positions,
    )


@pytest.mark.parametrize("pad", [pad_left, pad_right])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], EQUAL], ids=["ragged", "one", "equal"])
def test_of_padded_rows(pad, prompts: list[list[int]]) -> None:
    _, mask = pad(prompts, PAD)
    expected = theirs(mask, position_ids(mask))

    with mask_from_host(TRUNK, mask, position_ids(mask), CPU) as found:
        name = TRUNK.config._attn_implementation

    assert (found is None) is (expected is None) is (len(set(map(len, prompts))) == 1)
    assert found is None or torch.equal(found, expected)
    assert name == (UNMASKED if found is None else "sdpa")
    assert TRUNK.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "lengths", [[[3, 2, 4], [5, 1]], [[1, 1], [2]], [[4, 2], [3]], [[5], [5]]], ids=str
)
def test_of_packed_rows(lengths: list[list[int]]) -> None:
    positions = packed_positions(lengths)
    expected = theirs(None, positions)

    with mask_from_host(TRUNK, None, positions, CPU) as found:
        assert (found is None) is (expected is None)
        assert found is None or torch.equal(found, expected)


@pytest.mark.parametrize("lengths", [[3, 2, 4], [1, 1, 1], [2, 1]], ids=str)
def test_of_one_packed_row_the_lengths_are_enough(lengths: list[int]) -> None:
    with mask_from_host(TRUNK, None, packed_positions([lengths]), CPU) as found:
        assert found is not None
        assert found.tolist() == [[[lengths]]]
        assert TRUNK.config._attn_implementation == WITHIN
    assert TRUNK.config._attn_implementation == "sdpa"


def test_elsewhere_than_on_a_cpu_one_packed_row_has_a_mask_too() -> None:
    with mask_from_host(TRUNK, None, packed_positions([[3, 2]]), torch.device("meta")) as found:
        assert found is not None
        assert found.shape == (1, 1, 5, 5)
        assert TRUNK.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", [name for name in families.EVERY if name in TAKE_ANY_MASK])
def test_attention_within_sequences_is_that_of_a_mask(family: str, assert_close) -> None:
    """Hidden states and gradients; of Mistral as it is without the window that it has here."""
    trunk = families.policy(family).base_model
    lengths = [5, 1, 9, 2]
    ids = torch.arange(sum(lengths))[None] % 13 + 2
    positions = packed_positions([lengths])

    def results(name: str, mask: torch.Tensor) -> list[torch.Tensor]:
        with attending_as(trunk.config, name):
            hidden = trunk(input_ids=ids, attention_mask=mask, position_ids=positions)[0]
        factors = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
        return [hidden, *torch.autograd.grad((hidden * factors).sum(), list(trunk.parameters()))]

    found = results(WITHIN, torch.tensor([[[lengths]]]))
    for one, other in zip(found, results("sdpa", visible_in_packed(positions)), strict=True):
        assert_close(one, other, rtol=0, atol=1e-4)


def test_a_trunk_that_looks_back_so_far_only_gets_the_padding_mask() -> None:
    trunk = families.policy("mistral").base_model
    _, mask = pad_left(PROMPTS, PAD)

    with mask_from_host(trunk, mask, position_ids(mask), CPU) as found:
        assert torch.equal(found, mask.long())
    with mask_from_host(trunk, None, packed_positions([[2, 1]]), CPU) as found:
        assert found is None
