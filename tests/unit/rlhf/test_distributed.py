"""Two processes compute what one does: sums, gradients, responses, scores, rollouts."""

import os
import signal
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rlhf import distributed, ppo_update, sft
from rlhf.draws import draw_table
from rlhf.evaluation import kl_to_reference
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams
from rlhf.ppo import build_batch, compute_rewards
from rlhf.scoring import score_rows
from rlhf.seeding import Seeds
from tests import ppo_world, tiny
from tests.forked import run_together
from tests.sampling import sample_all
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS, TOKENS
from tests.training_steps import EXAMPLES, ppo_steps, reward_steps, sft_steps

LARGEST_GAP = 2e-6
"""Of the gradient of two processes, as a share of the gradient of one."""
BFLOAT16 = replace(COMPUTE, precision="bfloat16")
LARGEST_BFLOAT16_GAP = 4 * 2**-8
"""The same where products are rounded to 8 bits, in another order in a batch of another shape; one
process whose micro-batches have another size differs as much."""


# --- sums and rows -----------------------------------------------------------------------------


def test_alone_nothing_is_changed() -> None:
    values, rows = torch.arange(3.0), [[1], [2, 3]]

    assert (distributed.rank(), distributed.world()) == (0, 1)
    assert distributed.total(values) is values
    assert distributed.gather(values) is values
    assert distributed.share(rows) == distributed.gather_rows(rows) == rows
    assert distributed.totals([0.1]) == distributed.of_first([0.1]) == [0.1]


def test_a_sum_is_in_the_order_of_the_processes_and_the_same_in_all() -> None:
    """In float32 1e8 + 1 - 1e8 is 0 and 1e8 - 1e8 + 1 is 1."""
    numbers = ([1e8, -1e8, 1e8], [1.0, 1e8, -1e8], [-1e8, 1.0, 1.0])

    def work() -> list[float]:
        return distributed.total(torch.tensor(numbers[distributed.rank()])).tolist()

    assert run_together(work, processes=3) == [[0.0, 1.0, 1.0]] * 3


def test_rows_of_all_processes_come_together_whatever_their_number_and_length() -> None:
    rows = [[1], [], [2, 3, 4], [5, 6], [7]]

    def work():
        part = distributed.share(rows)
        flags = torch.tensor([len(row) > 1 for row in part])
        return distributed.gather_rows(part), distributed.gather(flags).tolist()

    expected = [[1], [2, 3, 4], [7], [], [5, 6]], [False, True, False, False, True]
    assert run_together(work) == [expected, expected]


def test_a_process_without_rows_takes_part() -> None:
    def work():
        return distributed.gather_rows(distributed.share([[1, 2]]))

    assert run_together(work) == [[[1, 2]]] * 2


def test_the_wish_of_one_is_everybodys_and_what_the_first_has_is_what_all_have() -> None:
    def work():
        rank = distributed.rank()
        wishes = distributed.any_of(rank == 1), distributed.any_of(False)
        return wishes, distributed.of_first([0.1 + rank, 7.0])

    assert run_together(work) == [((True, False), [0.1, 7.0])] * 2


def test_gradients_are_added_up_and_one_that_nobody_has_stays_none() -> None:
    def work():
        weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
        rank = distributed.rank()
        weights[0].grad = torch.tensor([1.0, 10.0]) * (rank + 1)
        if rank == 1:
            weights[1].grad = torch.tensor([5.0, 6.0])
        distributed.sum_gradients(weights)
        return [None if weight.grad is None else weight.grad.tolist() for weight in weights]

    assert run_together(work) == [[[3.0, 30.0], [5.0, 6.0], None]] * 2


def test_buckets_change_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "BUCKET", 3)

    def work():
        weights = [torch.nn.Parameter(torch.zeros(size)) for size in (2, 1, 5, 2)]
        for number, weight in enumerate(weights):
            weight.grad = torch.full_like(weight, number + 10.0 * distributed.rank())
        distributed.sum_gradients(weights)
        return [weight.grad.tolist() for weight in weights]

    assert run_together(work) == [[[10.0] * 2, [12.0], [14.0] * 5, [16.0] * 2]] * 2


def test_the_death_of_another_is_an_error_that_says_so() -> None:
    def work():
        if distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return distributed.any_of(False)

    found, nothing = run_together(work)
    assert nothing is None
    assert isinstance(found, distributed.LostProcessError)
    assert "another of the stage's processes has ended" in str(found)


# --- gradients of whole optimiser steps --------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        sft_steps,
        lambda: sft_steps(packing=True),
        lambda: sft_steps(micro_batch_size=1),
        reward_steps,
        ppo_steps,
        lambda: ppo_steps(kl_in="loss", kl_estimator="k2"),
        lambda: ppo_steps(value_warmup_iterations=1),
        lambda: ppo_steps(packing=True),
        lambda: reward_steps(packing=True),
    ],
    ids=["sft", "packed", "micro", "reward", "ppo", "kl", "value", "packed-ppo", "packed-reward"],
)
def test_two_processes_have_the_gradients_and_the_metrics_of_one(steps, assert_close) -> None:
    """The first step's; what follows starts from weights that differ in their last digits."""
    expected, numbers = steps()

    (ours, found), (theirs, _) = run_together(steps)

    gap = (ours[0] - expected[0]).norm() / expected[0].norm()
    assert gap.item() <= LARGEST_GAP
    assert len(ours) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
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


# --- one process that has met nobody but itself ------------------------------------------------


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


# --- responses and what is computed of them ----------------------------------------------------


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [torch.randint(2, 16, (size,), generator=generator).tolist() for size in sizes]


@pytest.mark.parametrize("count", [1, 7, 20])
def test_one_process_and_several_give_the_same_responses(count: int) -> None:
    asked = prompts(count)

    def work():
        return sample_all(
            tiny.llama(),
            asked,
            SamplingParams(max_new_tokens=12),
            stop_ids=(EOS,),
            pad_id=PAD,
            batch_size=3,
            draws=draw_table(0, asked, 12),
        )

    assert run_together(work, processes=3) == [work()] * 3


def test_one_process_and_two_have_the_same_scores_losses_and_kl(assert_close) -> None:
    answers = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]

    def work():
        model = tiny.reward_model()
        scores = score_rows(model, prompts(9), pad_id=PAD, compute=COMPUTE, batch_size=2)
        policy, reference, settings = tiny.llama(0), tiny.llama(1), EvaluateParams(batch_size=3)
        kl = kl_to_reference(policy, reference, PROMPTS, answers, settings, TOKENS, compute=COMPUTE)
        loss = sft.mean_loss(policy, EXAMPLES, SFTParams(), pad_id=PAD, compute=COMPUTE)
        return [*scores, *kl, loss]

    ours, theirs = run_together(work)
    assert ours == theirs
    assert_close(ours, work(), rtol=1e-5, atol=1e-6)


def test_a_rollout_of_two_processes_is_that_of_one(assert_close) -> None:
    """The update that follows checks that its first ratios are 1."""
    params = ppo_world.params(iterations=1, rollout_size=10, micro_batch_size=2, minibatches=2)

    def work():
        training = ppo_world.fresh(params, reference_seed=1)
        seeds, found = Seeds(0), []
        for iteration in ppo_world.train(
            training, prompts(10), params, TOKENS, compute=COMPUTE, seeds=seeds
        ):
            rollout = iteration.rollout
            found += [rollout.response_ids.tolist(), rollout.ended.tolist()]
            found += [rollout.logprobs.tolist(), rollout.scores.tolist()]
        return found

    (ids, ended, logprobs, scores), other = run_together(work)
    alone = work()
    assert other == [ids, ended, logprobs, scores]
    assert [ids, ended] == alone[:2]
    assert_close(scores, alone[3], rtol=0, atol=1e-5)
    assert_close(torch.tensor(logprobs), torch.tensor(alone[2]), rtol=0, atol=1e-5)


def advantages_and_returns(changes: dict[str, Any]) -> list[torch.Tensor]:
    """Of two rollouts, the second with updated weights."""
    settings = {"rollout_size": 10, "minibatches": 2, "advantage_clip": 1.5, **changes}
    params, found = ppo_world.params(**settings), []
    training = ppo_world.fresh(params, reference_seed=1)
    for iteration in ppo_world.run(training, params, prompts=prompts(10)):
        rollout = iteration.rollout
        rewards, _ = compute_rewards(rollout, params, kl_coef=iteration.metrics.kl_coef)
        batch = build_batch(rollout, rewards, params)
        found += [batch.advantages, batch.returns]
    return found


ESTIMATORS = [
    {},
    {"whiten_rewards": True},
    {"advantage": "grpo", "samples_per_prompt": 5},
    {"advantage": "reinforce_pp"},
]


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("changes", ESTIMATORS, ids=["gae", "rewards", "grpo", "reinforce_pp"])
def test_several_processes_have_the_advantages_of_one(
    changes: dict[str, Any], processes: int, assert_close
) -> None:
    """Rows that are scored one by one have the same bits wherever that is done."""

    def work():
        return advantages_and_returns({"micro_batch_size": 1, **changes})

    expected = work()
    assert expected[0].std() > 0.1

    ours, *others = run_together(work, processes)

    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(ours, other, strict=True))
    assert torch.equal(ours[0], expected[0])
    assert torch.equal(ours[1], expected[1])
    # Of weights after a step on gradients that were added up in another order.
    assert_close(ours[2], expected[2], rtol=0, atol=1e-4)
    assert_close(ours[3], expected[3], rtol=0, atol=1e-4)


def test_the_parts_of_an_update_are_those_that_the_rollout_was_scored_in() -> None:
    """In bfloat16 a row's numbers depend on its batch, so both have to deal rows out alike."""
    params = ppo_world.params(rollout_size=10, micro_batch_size=2, minibatches=2)
    compute, lengths = replace(COMPUTE, precision="bfloat16"), torch.arange(10) % 4

    def work():
        seeds = Seeds(0)
        parts = ppo_update.micro_batches(10, params, 0, compute, seeds).of(lengths)
        return [part.tolist() for part in parts]

    first, second = run_together(work)
    assert sorted(chain(*first, *second)) == list(range(10))
    assert all(len(part) <= 2 for part in first + second)
