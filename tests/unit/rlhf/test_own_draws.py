"""A response depends on its own prompt and the seed alone, not on the rows beside it."""

from functools import partial

import pytest
import torch

from tests import tiny
from tests.sampling import (
    GREEDY,
    ending_often,
    longer_and_shorter,
    sample,
    sample_in_batches,
    varied_prompts,
)
from tests.tiny import PROMPTS


@torch.no_grad()
def test_s57_answers_depend_on_their_draws_alone():
    """Peer defect 4: sampling from the global generator."""
    lm, prompts = tiny.gpt2(), varied_prompts()
    torch.manual_seed(1)
    first = sample(lm, prompts, seed=3, max_new_tokens=6).rows()
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    assert sample(lm, prompts, seed=3, max_new_tokens=6).rows() == first
    assert torch.equal(torch.rand(1), expected)
    assert sample(lm, prompts, seed=4, max_new_tokens=6).rows() != first


@pytest.mark.parametrize("batch_size", [1, 5, 100])
@torch.no_grad()
def test_many_prompts_get_their_own_answers_in_their_order(batch_size):
    lm, prompts = longer_and_shorter(tiny.llama), varied_prompts()
    found = sample_in_batches(lm, prompts, batch_size=batch_size, **GREEDY)
    assert found == sample(lm, prompts, **GREEDY).rows()


@torch.no_grad()
def test_s57_a_row_that_ends_earlier_or_later_changes_no_other_response():
    lm, prompts = ending_often(), varied_prompts()
    expected = sample(lm, prompts, max_new_tokens=8).rows()[1:]
    lengths = set()
    for first in range(2, 14):
        rows = sample(lm, [[first] * 9, *prompts[1:]], max_new_tokens=8).rows()
        lengths.add(len(rows[0]))
        assert rows[1:] == expected
    assert lengths >= {1, 2, 3}


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("build", [partial(longer_and_shorter, tiny.llama), ending_often])
@torch.no_grad()
def test_s57_neither_batch_size_nor_order_changes_a_sampled_response(build, batch_size):
    """Sums differ in the last bit between shapes of a batch; no draw here is that close."""
    lm, prompts = build(), varied_prompts(24)
    expected = sample(lm, prompts, max_new_tokens=8).rows()
    assert len({len(row) for row in expected}) > 3
    assert sample_in_batches(lm, prompts, batch_size=batch_size, max_new_tokens=8) == expected
    order = torch.randperm(24, generator=torch.Generator().manual_seed(batch_size)).tolist()
    shuffled = [prompts[row] for row in order]
    found = sample_in_batches(lm, shuffled, batch_size=batch_size, max_new_tokens=8)
    assert found == [expected[row] for row in order]


@torch.no_grad()
def test_s57_a_response_that_was_cut_is_the_start_of_the_one_with_more_room():
    lm, prompts = ending_often(), varied_prompts(24)
    short, long = (sample(lm, prompts, max_new_tokens=room).rows() for room in (3, 8))
    assert short != long
    assert short == [row[:3] for row in long]


@torch.no_grad()
def test_s57_equal_policies_give_equal_responses_and_equal_prompts_different_ones():
    first, second = (sample(tiny.gpt2(), PROMPTS * 4, max_new_tokens=8).rows() for _ in range(2))
    assert first == second
    copies = first[:: len(PROMPTS)]
    assert len(copies) == 4
    assert len({tuple(row) for row in copies}) > 1
