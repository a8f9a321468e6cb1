"""Named random streams."""

import torch

from rlhf.named_seeds import named_seed
from rlhf.seeding import Seeds


def test_s57_the_same_name_draws_the_same_numbers():
    draws = [torch.rand(4, generator=Seeds(1).torch("sft", "order", 0)) for _ in range(2)]
    assert torch.equal(*draws)


def test_s57_another_name_or_seed_draws_other_numbers():
    first = torch.rand(4, generator=Seeds(1).torch("sft", "order", 0))
    assert not torch.equal(first, torch.rand(4, generator=Seeds(1).torch("sft", "order", 1)))
    assert not torch.equal(first, torch.rand(4, generator=Seeds(2).torch("sft", "order", 0)))


def test_the_data_stages_and_the_training_loops_derive_the_same_seeds():
    assert Seeds(9).named("a", 2) == named_seed(9, "a", 2)


def test_s57_nothing_is_drawn_from_the_global_generator():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.rand(9, generator=Seeds(0).torch("ppo"))
    assert torch.equal(torch.rand(3), expected)
