"""Seeds by name."""

import random

import pytest

from rlhf.named_seeds import named_random, named_seed


def test_s57_a_name_has_the_same_seed_in_every_process_and_version():
    """First 8 bytes of `printf '[0, "ppo", 3]' | sha256sum`, halved."""
    assert named_seed(0, "ppo", 3) == 0x328805A36980777B


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "ppo", "r1"), (1, "ppo", "r1")),
        ((0, "ppo", "r1"), (0, "ppo", "r2")),
        ((0, "ppo", 1), (0, "ppo", 2)),
        ((0, "ppo", 1), (0, "ppo", "1")),
        ((0, "ab", "c"), (0, "a", "bc")),
        ((0, "a"), (0, "a", "")),
        ((1, "a"), (0, 1, "a")),
    ],
)
def test_s57_different_names_or_runs_have_different_seeds(one, other):
    assert named_seed(*one) != named_seed(*other)


def test_a_seed_is_one_that_torch_and_python_take():
    seeds = [named_seed(0, "many", i) for i in range(500)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_s57_a_stream_repeats_itself_and_leaves_the_global_one_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    first = [named_random(3, "split").random() for _ in range(2)]
    assert first[0] == first[1]
    assert random.random() == expected
