"""Several processes have the responses, scores, rollouts and advantages of one."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch

from rlhf import ppo_update, sft
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
from tests.training_steps import EXAMPLES


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
    pytest.param({"whiten_rewards": True}, marks=pytest.mark.long),
    pytest.param({"advantage": "grpo", "samples_per_prompt": 5}, marks=pytest.mark.long),
    pytest.param({"advantage": "reinforce_pp"}, marks=pytest.mark.long),
]


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.long)])
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
