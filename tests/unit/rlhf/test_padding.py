"""Padding, positions and batches of similar length."""

import torch

from rlhf.padding import length_buckets, pad_left, pad_right, position_ids

ROWS = [[7, 8, 9], [5], []]


def test_s02_prompts_end_at_the_right_edge_and_the_mask_marks_the_real_tokens():
    ids, mask = pad_left(ROWS, 3)
    assert ids.tolist() == [[7, 8, 9], [3, 3, 5], [3, 3, 3]]
    assert mask.tolist() == [[True] * 3, [False, False, True], [False] * 3]


def test_s03_responses_start_at_the_left_edge_and_the_mask_marks_the_real_tokens():
    ids, mask = pad_right(ROWS, 3)
    assert ids.tolist() == [[7, 8, 9], [5, 3, 3], [3, 3, 3]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]


def test_s01_a_real_token_that_looks_like_padding_stays_real():
    _, mask = pad_right([[3, 3], [3]], 3)
    assert mask.tolist() == [[True, True], [True, False]]


def test_no_rows_give_an_empty_batch():
    ids, mask = pad_left([], 0)
    assert ids.shape == mask.shape == (0, 0)


def test_s02_positions_count_real_tokens_from_zero_wherever_the_padding_is():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 1, 1, 2], [0, 1, 2, 3, 4]]


def lengths(count: int) -> list[int]:
    return torch.randint(1, 200, (count,), generator=torch.Generator().manual_seed(3)).tolist()


def test_s33_every_row_is_in_exactly_one_batch():
    batches = length_buckets(lengths(203), 8, torch.Generator().manual_seed(0))
    assert sorted(row for batch in batches for row in batch) == list(range(203))
    assert sorted(len(batch) for batch in batches) == [3] + [8] * 25


def test_rows_of_one_batch_have_similar_lengths():
    """In random batches of 8 from 1 to 199 the longest and shortest lie about 154 apart."""
    sizes = lengths(800)
    batches = length_buckets(sizes, 8, torch.Generator().manual_seed(0))
    spreads = [max(sizes[i] for i in batch) - min(sizes[i] for i in batch) for batch in batches]
    assert sum(spreads) / len(spreads) < 20


def test_long_and_short_batches_come_in_random_order():
    sizes = lengths(128)
    batches = length_buckets(sizes, 8, torch.Generator().manual_seed(0))
    means = [sum(sizes[i] for i in batch) / len(batch) for batch in batches]
    assert means != sorted(means)


def test_s57_the_batches_depend_on_the_seed_and_on_nothing_else():
    sizes = lengths(64)

    def batches(seed: int) -> list[list[int]]:
        torch.rand(7)  # the global generator moves on and must not matter
        return length_buckets(sizes, 4, torch.Generator().manual_seed(seed))

    assert batches(1) == batches(1)
    assert batches(1) != batches(2)
