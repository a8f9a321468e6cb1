"""The table of uniform numbers: what a row depends on, and its values by another way."""

import hashlib
import struct

import torch

from rlhf.draws import draw_table

PROMPTS = [[5, 6, 7], [5, 6], [9], [5, 6, 7], [9, 0]]


def test_s57_the_numbers_are_those_of_the_hash_computed_by_hand():
    """The second copy of the first prompt, its third number; then all of that row."""
    table = draw_table(12, PROMPTS, 4)
    digest = hashlib.shake_128(b"[12, 1, 5, 6, 7]").digest(32)
    assert table[3, 2].item() == int.from_bytes(digest[16:24], "little") // 2**11 / 2**53
    assert table[3].tolist() == [word // 2**11 / 2**53 for word in struct.unpack("<4Q", digest)]


def test_s57_a_row_depends_on_its_prompt_and_copy_and_not_on_its_place():
    table = draw_table(0, PROMPTS, 6)
    order = [4, 0, 2, 3, 1]
    assert torch.equal(draw_table(0, [PROMPTS[row] for row in order], 6), table[order])
    for row in (0, 1, 2, 4):
        assert torch.equal(draw_table(0, [PROMPTS[row]], 6)[0], table[row])


def test_s57_no_number_depends_on_how_many_follow():
    assert torch.equal(draw_table(3, PROMPTS, 2), draw_table(3, PROMPTS, 48)[:, :2])


def test_s57_seeds_prompts_and_copies_have_numbers_of_their_own():
    numbers = torch.cat([draw_table(seed, PROMPTS, 8) for seed in (0, 1, 2**63 - 1)]).flatten()
    assert len(numbers.unique()) == len(numbers)


def test_s57_the_global_generator_plays_no_part():
    torch.manual_seed(1)
    first = draw_table(0, PROMPTS, 3)
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(draw_table(0, PROMPTS, 3), first)


def test_s05_the_numbers_are_uniform():
    """Kolmogorov's distance of 100,000 numbers, within 1.95 / sqrt(n): 99.9 %."""
    numbers = draw_table(1, [[row] for row in range(1000)], 100).flatten().sort().values
    count = len(numbers)
    assert numbers[0] >= 0
    assert numbers[-1] < 1
    steps = torch.arange(count, dtype=torch.float64) / count
    distance = torch.maximum((numbers - steps).abs(), (numbers - steps - 1 / count).abs()).max()
    assert distance < 1.95 / count**0.5


def test_s05_neighbouring_rows_and_steps_are_uncorrelated():
    """Correlations of 50,000 pairs and more, within 3.3 standard errors."""
    table = draw_table(2, [[row] for row in range(1000)], 60)
    for first, second in ((table[:-1], table[1:]), (table[:, :-1], table[:, 1:])):
        pairs = torch.stack([first.flatten(), second.flatten()])
        assert abs(pairs.corrcoef()[0, 1].item()) < 3.3 / pairs.shape[1] ** 0.5
