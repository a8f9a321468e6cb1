"""DPO learns a preference that can be learnt, and a large beta holds it at the reference."""

import pytest
import torch

from rlhf.dpo import PromptedPair, all_logprobs, train
from rlhf.optimisers import Optimiser, Training
from rlhf.params.dpo import DPOParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.seeding import Seeds
from tests import tiny
from tests.tiny import COMPUTE, EOS, PAD, VOCABULARY

LIKED = 5
OPTIMISER = OptimiserParams(lr=3e-3, warmup_steps=5)


def pairs(count: int, seed: int) -> list[PromptedPair]:
    """The chosen response holds the liked token somewhere, the rejected one is without it."""
    generator = torch.Generator().manual_seed(seed)

    def row(size: int) -> list[int]:
        return torch.randint(6, VOCABULARY, (size,), generator=generator).tolist()

    found = []
    for _ in range(count):
        chosen = row(4)
        chosen[int(torch.randint(0, 4, (1,), generator=generator))] = LIKED
        found.append(PromptedPair(row(3), [*chosen, EOS], [*row(4), EOS]))
    return found


def trained_gaps(beta: float) -> torch.Tensor:
    """How much more than the reference it prefers the chosen side, on pairs never seen, in nats."""
    params = DPOParams(beta=beta, batch_size=16, epochs=2, optimiser=OPTIMISER)
    policy = tiny.llama().eval()
    training = Training(policy, Optimiser(params.optimiser, policy.named_parameters()))
    seen, held_out = pairs(300, 0), pairs(200, 1)

    def logprobs(rows: list[PromptedPair]):
        return all_logprobs(policy, rows, pad_id=PAD, compute=COMPUTE)

    before = logprobs(held_out)
    reference = logprobs(seen)
    for _ in train(training, seen, reference, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)):
        pass
    after = logprobs(held_out)
    return (after.chosen - before.chosen) - (after.rejected - before.rejected)


def test_pairs_never_seen_are_ordered_by_the_rewards_that_the_policy_implies() -> None:
    assert (trained_gaps(0.1) > 0).float().mean() > 0.95


@pytest.mark.long
def test_a_larger_beta_stays_closer_to_the_reference() -> None:
    near, far = trained_gaps(30.0).abs().mean(), trained_gaps(0.1).abs().mean()
    assert near < far / 2
