"""Optimiser steps of two processes have the gradients of one, and of one process those of none."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from tests.forked import run_together
from tests.tiny import COMPUTE
from tests.training_steps import assert_gradients_of_one, ppo_steps, reward_steps, sft_steps

BFLOAT16 = replace(COMPUTE, precision="bfloat16")
LARGEST_BFLOAT16_GAP = 4 * 2**-8
"""The same where products are rounded to 8 bits, in another order in a batch of another shape; one
process whose micro-batches have another size differs as much."""


@pytest.mark.parametrize(
    "steps",
    [
        sft_steps,
        pytest.param(lambda: sft_steps(packing=True), marks=pytest.mark.long),
        pytest.param(lambda: sft_steps(micro_batch_size=1), marks=pytest.mark.long),
        reward_steps,
        ppo_steps,
        lambda: ppo_steps(kl_in="loss", kl_estimator="k2"),
        pytest.param(lambda: ppo_steps(value_warmup_iterations=1), marks=pytest.mark.long),
        lambda: ppo_steps(packing=True),
        pytest.param(lambda: reward_steps(packing=True), marks=pytest.mark.long),
    ],
    ids=["sft", "packed", "micro", "reward", "ppo", "kl", "value", "packed-ppo", "packed-reward"],
)
def test_two_processes_have_the_gradients_and_the_metrics_of_one(steps, assert_close) -> None:
    """The first step's; what follows starts from weights that differ in their last digits."""
    expected, numbers = steps()

    (ours, found), (theirs, _) = run_together(steps)

    assert_gradients_of_one(ours, theirs, expected)
    assert_close(found, numbers, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "steps", [sft_steps, reward_steps, ppo_steps], ids=["sft", "reward", "ppo"]
)
def test_two_processes_in_bfloat16_have_the_gradients_of_one_within_its_rounding(steps) -> None:
    """PPO's rollout is the same, too: no draw falls within rounding of a boundary here."""

    def work():
        return steps(BFLOAT16)

    expected, numbers = work()
    exact, _ = steps(COMPUTE)

    (ours, found), (theirs, others) = run_together(work)

    gap = (ours[0] - expected[0]).norm() / expected[0].norm()
    assert 0 < gap.item() <= LARGEST_BFLOAT16_GAP
    assert not torch.equal(expected[0], exact[0]), "it is bfloat16"
    assert len(ours) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert found == others
    torch.testing.assert_close(found, numbers, rtol=0.05, atol=0.05)


def test_two_runs_of_two_processes_have_the_same_bits() -> None:
    first, second = run_together(ppo_steps), run_together(ppo_steps)

    for one, other in zip(first[0][0], second[0][0], strict=True):
        assert torch.equal(one, other)
    assert first[0][1] == first[1][1] == second[0][1]


@pytest.mark.parametrize(
    "steps", [sft_steps, reward_steps, ppo_steps], ids=["sft", "reward", "ppo"]
)
def test_a_world_of_one_process_has_the_bits_of_none(steps) -> None:
    """The gradients of all steps, so all but the first are those of updated weights."""

    def work():
        return dist.is_initialized(), *steps()

    gradients, numbers = steps()

    ((joined, found, ours),) = run_together(work, processes=1)

    assert joined
    assert len(found) == len(gradients) > 1
    assert all(torch.equal(one, other) for one, other in zip(found, gradients, strict=True))
    assert ours == numbers
