"""Direct preference optimisation: the policy is trained on pairs, without reward model or samples.

Rafailov et al. 2023. The reference is the policy before training; its log-probabilities of all
pairs are computed once. Log-probabilities are sums over a response's tokens, the end token included
where the response has one, so a longer response is not a less likely one by its mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rlhf.compute import Compute, sent
from rlhf.dpo_loss import PairLogprobs, dpo_loss
from rlhf.logits import before_response
from rlhf.masked import sequence_sums
from rlhf.optimisers import Training
from rlhf.padding import length_buckets, pad_left, pad_right
from rlhf.params.dpo import DPOParams
from rlhf.seeding import Seeds
from rlhf.token_chunks import chunked_logprobs


@dataclass(frozen=True, slots=True)
class PromptedPair:
    """Token ids of a prompt and of its two responses."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    weight: float = 1.0
    label: float = 1.0
    """Probability that `chosen` is the better one; ½ is a tie."""

    def __len__(self) -> int:
        """Tokens of the longer side."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


@dataclass(frozen=True, slots=True)
class DPOMetrics:
    """One optimiser step; accuracy and margin are of the implied rewards."""

    loss: float
    accuracy: float
    margin: float
    grad_norm: float


def pair_logprobs(
    policy: PreTrainedModel, pairs: Sequence[PromptedPair], *, pad_id: int, compute: Compute
) -> PairLogprobs:
    """What the policy says of both sides, in one forward pass."""
    prompts = [pair.prompt for pair in pairs] * 2
    responses = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    prompt_ids, prompt_mask = pad_left(prompts, pad_id)
    ids, mask = pad_right(responses, pad_id)
    prompt_ids, ids, real = (sent(each, compute.device) for each in (prompt_ids, ids, mask))
    batch = (prompt_ids, prompt_mask, ids, mask)
    with compute.autocast():
        hidden = before_response(policy.base_model, batch)
        logprobs = chunked_logprobs(policy, hidden, ids, temperature=1.0)
    sums = sequence_sums(logprobs, real)
    return PairLogprobs(*sums.split(len(pairs)))


@torch.no_grad()
def all_logprobs(
    policy: PreTrainedModel,
    pairs: Sequence[PromptedPair],
    *,
    pad_id: int,
    compute: Compute,
    batch_size: int = 128,
) -> PairLogprobs:
    """The same for many pairs, in their order; pairs of similar length share a batch."""
    order = sorted(range(len(pairs)), key=lambda row: len(pairs[row]))
    chosen, rejected = torch.empty(len(pairs)), torch.empty(len(pairs))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        found = pair_logprobs(policy, [pairs[row] for row in rows], pad_id=pad_id, compute=compute)
        chosen[rows], rejected[rows] = found.chosen.cpu(), found.rejected.cpu()
    return PairLogprobs(chosen, rejected)


def total_steps(num_pairs: int, params: DPOParams) -> int:
    """Optimiser steps of the whole training."""
    return params.epochs * -(-num_pairs // params.batch_size)


def train(
    training: Training,
    pairs: Sequence[PromptedPair],
    reference: PairLogprobs,
    params: DPOParams,
    *,
    pad_id: int,
    compute: Compute,
    seeds: Seeds,
) -> Iterator[DPOMetrics]:
    """Train on pairs; yields each optimiser step.

    Args:
        training: a policy and its optimiser.
        pairs: all of them.
        reference: its log-probabilities of the pairs, from `all_logprobs`.
        params: of the loss and the loop.
        pad_id: id of the padding token.
        compute: where.
        seeds: of the order of the pairs.
    """
    policy = training.model
    assert isinstance(policy, PreTrainedModel)
    total = total_steps(len(pairs), params)
    per_epoch = total // params.epochs
    lengths = [len(pair) for pair in pairs]
    for epoch in range(training.step // per_epoch, params.epochs):
        batches = length_buckets(lengths, params.batch_size, seeds.torch("dpo", "order", epoch))
        for rows in batches[training.step - epoch * per_epoch :]:
            batch = [pairs[row] for row in rows]
            result = dpo_loss(
                pair_logprobs(policy, batch, pad_id=pad_id, compute=compute),
                PairLogprobs(*(sent(side[rows], compute.device) for side in reference)),
                beta=params.beta,
                weights=torch.tensor([pair.weight for pair in batch]),
                soft_labels=sent(torch.tensor([pair.label for pair in batch]), compute.device),
            )
            result.loss.backward()
            parts = [[result.loss, result.accuracy, result.margin]]
            (loss, accuracy, margin), (norm,) = training.advance(parts, 3, params.optimiser, total)
            yield DPOMetrics(loss, accuracy, margin, norm)
    training.require_finite_weights()
