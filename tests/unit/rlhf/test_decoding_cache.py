"""The roomy cache holds what the library's holds, and copies no row that keeps its place."""

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlhf.decoding_cache import RoomyLayer, RoomyWindowLayer, decoding_cache
from tests import tiny


def states(rows: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, 2, length, 4, generator=generator) for _ in range(2))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RoomyLayer(10), DynamicLayer()),
        *((RoomyWindowLayer(10, size), DynamicSlidingWindowLayer(size)) for size in (2, 5, 7, 20)),
    ],
    ids=["all", "2", "5", "7", "20"],
)
def test_it_holds_what_the_librarys_layer_holds(ours: RoomyLayer, theirs: DynamicLayer):
    """A prompt of 5 tokens and its rest of 2, then single ones, with rows leaving in between."""
    assert ours.get_seq_length() == theirs.get_seq_length() == 0
    assert ours.is_sliding == theirs.is_sliding
    rows, length = 6, 5
    for step, kept in enumerate([[], [], [0, 5, 2, 4], [3, 1, 0], [1, 2]]):
        if kept:
            ours.batch_select_indices(torch.tensor(kept))
            theirs.batch_select_indices(torch.tensor(kept))
            rows = len(kept)
        new = states(rows, length, step)
        assert ours.get_mask_sizes(length) == theirs.get_mask_sizes(length)
        for mine, expected in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(mine, expected)
        assert ours.get_seq_length() == theirs.get_seq_length()
        length = 2 if step == 0 else 1


def test_a_step_moves_nothing_that_is_there():
    layer = RoomyLayer(6)
    before = layer.update(*states(2, 5, 0))[0].data_ptr()
    assert layer.update(*states(2, 1, 1))[0].data_ptr() == before
    window = RoomyWindowLayer(6, 4)
    before = window.update(*states(2, 5, 0))[0].untyped_storage().data_ptr()
    assert window.update(*states(2, 1, 1))[0].untyped_storage().data_ptr() == before


def test_rows_that_leave_a_cpu_move_no_row_that_keeps_its_place():
    layer = RoomyLayer(6)
    keys = layer.update(*states(4, 5, 0))[0]
    layer.batch_select_indices(torch.tensor([0, 3, 2]))
    assert layer.keys.data_ptr() == keys.data_ptr()
    keys[2] = 7.0
    assert bool((layer.keys[2] == 7.0).all()), "the same memory"


@pytest.mark.parametrize("layer", [RoomyLayer(6), RoomyWindowLayer(6, 4)], ids=["all", "window"])
def test_keys_are_kept_in_the_precision_that_attention_computes_in(layer: RoomyLayer):
    """Rotary positions make float32 of keys in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.update(*states(2, 5, 0)), layer.update(*states(2, 1, 1))
    assert {part.dtype for pair in found for part in pair} == {torch.bfloat16}


def test_more_tokens_than_there_is_room_for_are_refused():
    layer = RoomyLayer(6)
    layer.update(*states(2, 5, 0))
    layer.update(*states(2, 1, 1))
    with pytest.raises(ValueError, match="at most 6 tokens, found 7"):
        layer.update(*states(2, 1, 2))


def test_layers_that_look_back_so_far_only_have_room_as_well():
    config = MistralConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=3,
    )
    lm = MistralForCausalLM(config)
    windows = decoding_cache(lm, 4).layers
    assert {type(layer) for layer in windows} == {RoomyWindowLayer}
    assert {layer.sliding_window for layer in windows} == {3}
    assert {type(layer) for layer in decoding_cache(tiny.llama(), 4).layers} == {RoomyLayer}
