"""Pairs in one row: the scores and gradients of each side in a row of its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf.attention_masks import TAKE_ANY_MASK, takes_any_mask
from rlhf.masked import EmptyMaskError
from rlhf.pair_rows import join, pair_scores
from tests import families, tiny
from tests.tiny import PAD

SIDES = [
    ([5, 6, 7, 8, 1], [5, 6, 9, 1]),
    ([4, 1], [4, 10, 11, 12, 13, 1]),
    ([3, 2, 13], [3, 2]),  # one is the beginning of the other
    ([9, 9, 3, 1], [9, 9, 3, 1]),  # equal
    ([6, 7, 1], [8, 1]),  # nothing in common
]

PACKED = pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])


def alone(model, row):
    """The library's own pass over one row without padding."""
    hidden = model.classifier.base_model(input_ids=torch.tensor([row])).last_hidden_state
    return model.head(hidden[0, -1])[0]


@pytest.mark.parametrize("family", sorted(TAKE_ANY_MASK - {"mistral"}))
def test_s41_in_every_family_both_sides_score_what_they_score_alone(family, assert_close):
    trunk = families.policy(family).base_model
    assert takes_any_mask(trunk)
    rows = join(SIDES, pad_id=PAD)
    joined = trunk(rows.ids, rows.visible[:, None], position_ids=rows.positions, use_cache=False)
    found = joined.last_hidden_state.flatten(0, 1)[rows.ends.flatten()]
    sides = [side for pair in SIDES for side in pair]
    expected = torch.stack(
        [trunk(torch.tensor([side]), use_cache=False).last_hidden_state[0, -1] for side in sides]
    )
    assert_close(found, expected, rtol=0, atol=1e-5)


@PACKED
def test_s41_both_sides_score_what_they_score_in_rows_of_their_own(assert_close, packing):
    model = tiny.reward_model()
    assert takes_any_mask(model.classifier.base_model)
    expected = torch.stack([torch.stack([alone(model, side) for side in pair]) for pair in SIDES])
    found = pair_scores(model, SIDES, pad_id=PAD, packing=packing)
    assert found.shape == (5, 2)
    assert expected.std() > 0.1
    assert_close(found, expected, rtol=0, atol=1e-5)


@PACKED
def test_s41_their_gradients_are_the_same_too(assert_close, packing):
    model = tiny.reward_model()
    factors = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))
    expected = sum(
        factors[row, column] * alone(model, side)
        for row, pair in enumerate(SIDES)
        for column, side in enumerate(pair)
    )
    found = (factors * pair_scores(model, SIDES, pad_id=PAD, packing=packing)).sum()
    weights = [w for name, w in model.named_parameters() if "lm_head" not in name]
    pairs = zip(
        torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True
    )
    for mine, theirs in pairs:
        assert_close(mine, theirs, rtol=0, atol=1e-4)


def test_the_common_beginning_stands_in_a_row_once():
    rows = join(SIDES[:3], pad_id=15)
    assert rows.ids.tolist() == [
        [5, 6, 7, 8, 1, 9, 1],
        [4, 1, 10, 11, 12, 13, 1],
        [3, 2, 13, 2, 15, 15, 15],
    ]
    assert rows.positions.tolist() == [
        [0, 1, 2, 3, 4, 2, 3],
        [0, 1, 1, 2, 3, 4, 5],
        [0, 1, 2, 1, 0, 0, 0],
    ]
    # Counted over rows of 7.
    assert rows.ends.tolist() == [[4, 6], [8, 13], [16, 17]]


def test_s52_packed_pairs_share_rows_of_less_room():
    """Joined pairs of 7, 7, 4, 5 and 5 tokens fill two rows of 14, and five rows of 7 to 80 %."""
    rows = join(SIDES, pad_id=15, packing=True)
    single = [join([pair], pad_id=15) for pair in SIDES]
    for field in ("ids", "positions"):
        alone = [getattr(row, field)[0].tolist() for row in single]
        expected = [[*alone[0], *alone[1]], [*alone[3], *alone[4], *alone[2]]]
        assert getattr(rows, field).tolist() == expected


def test_no_token_sees_the_other_side_or_what_follows_it():
    visible = join(SIDES[:1], pad_id=PAD).visible[0].int().tolist()
    assert visible == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1, 1],
    ]


ROW = st.lists(st.integers(2, 4), min_size=1, max_size=12)


@given(st.lists(st.tuples(ROW, ROW), min_size=1, max_size=5), st.booleans())
def test_s52_each_side_is_what_its_end_sees_in_the_order_of_its_positions(sides, packing):
    rows = join(sides, pad_id=PAD, packing=packing)
    width = rows.ids.shape[1]
    assert bool(rows.visible.diagonal(dim1=1, dim2=2).all())
    for pair, ends in zip(sides, rows.ends.tolist(), strict=True):
        for side, (row, place) in zip(pair, (divmod(end, width) for end in ends), strict=True):
            seen = rows.visible[row, place]
            assert rows.ids[row][seen].tolist() == list(side)
            assert rows.positions[row][seen].tolist() == list(range(len(side)))


def test_a_side_without_a_token_is_refused():
    with pytest.raises(EmptyMaskError, match="both sides of pair 1"):
        pair_scores(tiny.reward_model(), [([3], [4]), ([3], [])], pad_id=PAD)


def test_models_that_look_back_so_far_only_or_are_unknown_are_not_joined():
    llama = tiny.reward_model().classifier.base_model
    assert not takes_any_mask(tiny.gpt2_reward_model().classifier.base_model)
    llama.config.sliding_window = 4
    assert not takes_any_mask(llama)
    llama.config.sliding_window = None
    llama.config._attn_implementation = "eager"
    assert not takes_any_mask(llama)
