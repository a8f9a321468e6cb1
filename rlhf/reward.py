"""Reward-model training: Bradley-Terry on pairs of responses.

Christiano et al. 2017; Stiennon et al. 2020 for language models.

    P(chosen > rejected) = sigmoid(score(chosen) - score(rejected))

The loss is the weighted mean over the pairs of an optimiser step. After training, scores are
normalised to mean 0 and standard deviation 1 on responses of the reference policy; the normaliser
is stored with the weights and is part of every score from then on.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlhf.attention_masks import takes_any_mask
from rlhf.compute import Compute, sent
from rlhf.masked import ROUNDING_STEPS
from rlhf.optimisers import Training
from rlhf.padding import length_buckets, pad_right
from rlhf.pair_rows import Sides, pair_scores
from rlhf.params.reward import RewardParams
from rlhf.preference_loss import PreferenceLoss, preference_loss
from rlhf.reward_models import RewardModel
from rlhf.seeding import Seeds
from rlhf.shapes import PairScores


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Token ids of a prompt with either response."""

    chosen: list[int]
    rejected: list[int]
    margin: float
    """Score gap that the label asks for; 0 for a plain comparison."""
    weight: float
    label: float = 1.0
    """Probability that `chosen` is the better one; ½ is a tie."""

    def __len__(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.chosen), len(self.rejected))


@dataclass(frozen=True, slots=True)
class RewardMetrics:
    """One optimiser step of reward-model training."""

    loss: float
    accuracy: float
    margin: float
    grad_norm: float


def source_weight(source: str, weights: Mapping[str, float]) -> float:
    """Mean weight of the kinds of annotators in a label's source, such as `human+rubric`."""
    return statistics.fmean(weights.get(kind, 1.0) for kind in source.split("+"))


def total_steps(num_pairs: int, params: RewardParams) -> int:
    """Optimiser steps of the whole training."""
    return params.epochs * -(-num_pairs // params.batch_size)


def train(
    training: Training,
    pairs: Sequence[EncodedPair],
    params: RewardParams,
    *,
    pad_id: int,
    compute: Compute,
    seeds: Seeds,
) -> Iterator[RewardMetrics]:
    """Train on pairs; yields each optimiser step."""
    total = total_steps(len(pairs), params)
    per_epoch = total // params.epochs
    lengths = [len(pair) for pair in pairs]
    for epoch in range(training.step // per_epoch, params.epochs):
        batches = length_buckets(lengths, params.batch_size, seeds.torch("reward", "order", epoch))
        for batch in batches[training.step - epoch * per_epoch :]:
            chosen = [pairs[row] for row in batch]
            found = _backward(training, chosen, params, pad_id, compute)
            (loss, accuracy, margin), (norm,) = training.advance(found, 3, params.optimiser, total)
            yield RewardMetrics(loss, accuracy if _decided(chosen) else 0.5, margin, norm)
    training.require_finite_weights()


class EnsembleTraining:
    """The members of an ensemble in training, one after the other; one member is the plain case."""

    def __init__(self, members: Sequence[Training]):
        """Each member with its own optimiser, at step 0."""
        self.members = tuple(members)

    @property
    def step(self) -> int:
        """Optimiser steps of all members together."""
        return sum(member.step for member in self.members)

    def state_dict(self) -> dict[str, Any]:
        """The state of every member."""
        return {str(number): member.state_dict() for number, member in enumerate(self.members)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for number, member in enumerate(self.members):
            member.load_state_dict(state[str(number)])

    def require_finite_weights(self) -> None:
        """Raise NonFiniteError where a weight of a member is NaN or infinite."""
        for member in self.members:
            member.require_finite_weights()


def member_seeds(seeds: Seeds, number: int) -> Seeds:
    """The random streams of a member; those of the first are what they are without an ensemble."""
    return Seeds(seeds.named("member", number)) if number else seeds


def train_members(
    training: EnsembleTraining,
    pairs: Sequence[EncodedPair],
    params: RewardParams,
    *,
    pad_id: int,
    compute: Compute,
    seeds: Seeds,
) -> Iterator[tuple[int, RewardMetrics]]:
    """Train every member on all pairs in an order of its own; yields member and step."""
    for number, member in enumerate(training.members):
        own = member_seeds(seeds, number)
        for step in train(member, pairs, params, pad_id=pad_id, compute=compute, seeds=own):
            yield number, step


def _backward(
    training: Training,
    pairs: Sequence[EncodedPair],
    params: RewardParams,
    pad_id: int,
    compute: Compute,
) -> list[list[torch.Tensor]]:
    """Backward over micro-batches: of each its part of loss, accuracy and margin.

    It counts by its share of the step's label weight. Ties have no accuracy: there a micro-batch
    counts by its share of the decided pairs' weight.
    """
    model = training.model
    assert isinstance(model, RewardModel)
    total_weight, total_decided = sum(pair.weight for pair in pairs), _decided(pairs)
    found: list[list[torch.Tensor]] = []
    with training.held.step(compute):
        for micro in training.held.micro_batches(pairs, params.micro_batch_size):
            share = micro.counts * sum(pair.weight for pair in micro.rows) / total_weight
            decided = micro.counts * _decided(micro.rows) / (total_decided or 1.0)
            work = partial(pair_loss, model, micro.rows, params, pad_id=pad_id)
            with compute.autocast():
                result = training.held.compute(work)
            (result.loss * share).backward()
            counts = zip(result, (share, decided, share), strict=True)
            found.append([value.detach().double() * count for value, count in counts])
    return found


def _decided(pairs: Sequence[EncodedPair]) -> float:
    """Label weight of the pairs that are no ties."""
    return sum((pair.weight for pair in pairs if pair.label != 0.5), 0.0)


def pair_loss(
    model: RewardModel, pairs: Sequence[EncodedPair], params: RewardParams, *, pad_id: int
) -> PreferenceLoss:
    """Bradley-Terry loss on raw scores; both sides go through the model in one forward pass."""
    device = model.head.weight.device
    sides = [(pair.chosen, pair.rejected) for pair in pairs]
    scores = _scores(model, sides, pad_id, packing=params.packing)
    return preference_loss(
        scores[:, 0],
        scores[:, 1],
        margins=sent(torch.tensor([pair.margin for pair in pairs]), device),
        weights=torch.tensor([pair.weight for pair in pairs]),
        soft_labels=sent(torch.tensor([pair.label for pair in pairs]), device),
        label_smoothing=params.label_smoothing,
        centring_coef=params.centring_coef,
    )


def _scores(
    model: RewardModel, sides: Sequence[Sides], pad_id: int, *, packing: bool
) -> PairScores:
    """Raw scores of both sides, in one row where the model can, else in a row each."""
    if takes_any_mask(model.classifier.base_model):
        return pair_scores(model, sides, pad_id=pad_id, packing=packing)
    ids, mask = pad_right([*(one for one, _ in sides), *(other for _, other in sides)], pad_id)
    device = model.head.weight.device
    scores = model.raw_scores(sent(ids, device), mask, packing=packing)
    return torch.stack(scores.split(len(sides)), dim=1)


def fit_normaliser(model: RewardModel, raw: Sequence[float]) -> None:
    """Set the normaliser so that reference responses score mean 0, deviation 1.

    Args:
        model: whose normaliser leaves scores as they are (mean 0, deviation 1).
        raw: its scores of the reference responses.
    """
    assert model.normaliser == (0.0, 1.0), "the scores are not raw"
    # Where a row stands in its batch may change its last digits.
    noise = ROUNDING_STEPS * torch.finfo(torch.float32).eps * max(map(abs, raw))
    spread = statistics.pstdev(raw)
    model.set_normaliser(statistics.fmean(raw), spread if spread > noise else 0.0)
