"""The training loop of DPO: whose tokens count, what resumes, in what order."""

import copy
import math
from dataclasses import replace

import torch

from rlhf.dpo import PromptedPair, all_logprobs, pair_logprobs, total_steps, train
from rlhf.optimisers import Optimiser, Training
from rlhf.params.dpo import DPOParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.seeding import Seeds
from tests import tiny
from tests.tiny import COMPUTE, EOS, PAD

PAIRS = [
    PromptedPair([5, 6, 7], [8, 9, EOS], [4, EOS]),
    PromptedPair([8], [3, 3, 3, 3, EOS], [5, 6, 7]),
    PromptedPair([9, 10, 11, 12, 13], [2, EOS], [14, 15, 2, EOS]),
    PromptedPair([4, 4], [6, EOS], [7, EOS]),
    PromptedPair([15, 2], [9, 10], [11, 12, EOS]),
]
PARAMS = DPOParams(
    epochs=2, batch_size=2, optimiser=OptimiserParams(lr=1e-2, warmup_steps=0, schedule="constant")
)


def by_token(policy, prompt: list[int], response: list[int]) -> float:
    """Log-probability of a response, one row without padding, token after token."""
    total = 0.0
    for place, token in enumerate(response):
        ids = torch.tensor([[*prompt, *response[:place]]])
        logits = policy(input_ids=ids).logits[0, -1].double()
        total += float(logits[token] - logits.logsumexp(0))
    return total


@torch.no_grad()
def test_a_response_has_the_sum_of_its_tokens_the_end_token_included(assert_close) -> None:
    policy = tiny.llama().eval()
    found = all_logprobs(policy, PAIRS, pad_id=PAD, compute=COMPUTE, batch_size=2)
    chosen = [by_token(policy, pair.prompt, pair.chosen) for pair in PAIRS]
    rejected = [by_token(policy, pair.prompt, pair.rejected) for pair in PAIRS]
    assert_close(found.chosen, chosen, rtol=1e-5, atol=1e-5)
    assert_close(found.rejected, rejected, rtol=1e-5, atol=1e-5)


def steps(policy, params: DPOParams = PARAMS, *, stop: int | None = None):
    """The training with its metrics, ended after `stop` steps."""
    training = Training(policy, Optimiser(params.optimiser, policy.named_parameters()))
    reference = all_logprobs(tiny.llama().eval(), PAIRS, pad_id=PAD, compute=COMPUTE)
    return training, reference, list(_until(training, reference, params, stop))


def _until(training, reference, params, stop):
    for step in train(
        training, PAIRS, reference, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)
    ):
        yield step
        if training.step == stop:
            return


def test_the_first_step_is_at_log_two_and_every_epoch_takes_each_pair_once(assert_close) -> None:
    training, _, metrics = steps(tiny.llama().eval())
    assert_close(metrics[0].loss, 0.6931472, rtol=0, atol=1e-5)
    assert len(metrics) == training.step == total_steps(len(PAIRS), PARAMS) == 6
    assert metrics[-1].loss < metrics[0].loss


@torch.no_grad()
def gap(policy, reference, pair: PromptedPair) -> float:
    """How much more the policy favours the chosen side than the reference does, in nats."""
    chosen, rejected = (
        by_token(policy, pair.prompt, response) - by_token(reference, pair.prompt, response)
        for response in (pair.chosen, pair.rejected)
    )
    return chosen - rejected


def test_a_step_reports_the_weighted_loss_of_its_labels_each_beside_its_own_reference(assert_close):
    """All pairs in one batch, which has them by length; the third is a tie, and ranks nothing."""
    weights, labels = (1.0, 0.25, 3.0, 0.5, 2.0), (1.0, 0.8, 0.5, 1.0, 0.9)
    each = list(zip(PAIRS, weights, labels, strict=True))
    pairs = [replace(pair, weight=weight, label=label) for pair, weight, label in each]
    policy, before = tiny.llama(3).eval(), tiny.llama().eval()
    deltas = [0.3 * gap(policy, before, pair) for pair in PAIRS]
    loss, ranked, margin = 0.0, 0.0, 0.0
    for delta, weight, label in zip(deltas, weights, labels, strict=True):
        chosen = 1 / (1 + math.exp(-delta))
        loss -= weight * (label * math.log(chosen) + (1 - label) * math.log(1 - chosen))
        ranked += weight * (delta > 0) * (label != 0.5)
        margin += weight * delta
    assert 0 < ranked < sum(weights) - 3.0

    params = replace(PARAMS, beta=0.3, epochs=1, batch_size=len(pairs))
    reference = all_logprobs(before, pairs, pad_id=PAD, compute=COMPUTE)
    training = Training(policy, Optimiser(params.optimiser, policy.named_parameters()))
    (found,) = train(
        training, pairs, reference, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)
    )

    assert_close(found.loss, loss / sum(weights), rtol=1e-4, atol=0)
    assert_close(found.accuracy, ranked / (sum(weights) - 3.0), rtol=1e-6, atol=0)
    assert_close(found.margin, margin / sum(weights), rtol=1e-4, atol=1e-5)


def test_the_pairs_of_an_epoch_come_in_an_order_of_its_own() -> None:
    """Nothing moves here, so that a margin is a pair."""
    still = replace(PARAMS, epochs=4, batch_size=1, optimiser=OptimiserParams(lr=1e-30))
    found = [round(step.margin, 4) for step in steps(tiny.llama(3).eval(), still)[2]]
    epochs = {tuple(found[start : start + 5]) for start in range(0, 20, 5)}
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1 < len(epochs)


def test_a_training_that_stopped_continues_to_the_same_weights() -> None:
    whole, reference, _ = steps(tiny.llama().eval())
    half, _, _ = steps(tiny.llama().eval(), stop=4)
    state = copy.deepcopy(half.state_dict())
    policy = tiny.llama().eval()
    resumed = Training(policy, Optimiser(PARAMS.optimiser, policy.named_parameters()))
    resumed.load_state_dict(state)
    rest = list(_until(resumed, reference, PARAMS, None))
    assert len(rest) == 2
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


def test_one_step_goes_towards_the_chosen_side() -> None:
    policy = tiny.llama().eval()
    pair = [PAIRS[0]]
    with torch.no_grad():
        before = pair_logprobs(policy, pair, pad_id=PAD, compute=COMPUTE)
    params = DPOParams(batch_size=1, optimiser=OptimiserParams(lr=1e-3, warmup_steps=0))
    training = Training(policy, Optimiser(params.optimiser, policy.named_parameters()))
    list(train(training, pair, before, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)))
    with torch.no_grad():
        after = pair_logprobs(policy, pair, pad_id=PAD, compute=COMPUTE)
    assert after.chosen - after.rejected > before.chosen - before.rejected
