"""The reward model learns what can be learnt, and nothing from labels that mean nothing."""

import torch

from rlhf.calibration import negative_log_likelihood
from rlhf.optimisers import Optimiser, Training
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.reward import RewardParams
from rlhf.reward import EncodedPair, train
from rlhf.scoring import score_rows
from rlhf.seeding import Seeds
from tests import tiny
from tests.tiny import COMPUTE, EOS, PAD

LIKED = 5
PARAMS = RewardParams(epochs=2, batch_size=16, optimiser=OptimiserParams(lr=5e-3, warmup_steps=5))


def random_row(generator: torch.Generator) -> list[int]:
    size = int(torch.randint(2, 8, (1,), generator=generator))
    return [*torch.randint(6, tiny.VOCABULARY, (size,), generator=generator).tolist(), EOS]


def separable_pairs(count: int, seed: int) -> list[EncodedPair]:
    """The chosen answer holds the liked token somewhere, the rejected one does not."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        chosen, rejected = random_row(generator), random_row(generator)
        chosen[int(torch.randint(0, len(chosen) - 1, (1,), generator=generator))] = LIKED
        pairs.append(EncodedPair(chosen, rejected, 0.0, 1.0))
    return pairs


def random_pairs(count: int, seed: int) -> list[EncodedPair]:
    """Two answers from the same source: which of them is chosen is a coin's toss."""
    generator = torch.Generator().manual_seed(seed)
    rows = [(random_row(generator), random_row(generator)) for _ in range(count)]
    return [EncodedPair(chosen, rejected, 0.0, 1.0) for chosen, rejected in rows]


def trained(pairs: list[EncodedPair], params: RewardParams = PARAMS):
    model = tiny.reward_model()
    training = Training(model, Optimiser(params.optimiser, model.named_parameters()))
    for _ in train(training, pairs, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)):
        pass
    return model


def gaps(model, pairs: list[EncodedPair]) -> list[float]:
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    scores = score_rows(model, rows, pad_id=PAD, compute=COMPUTE)
    return [a - b for a, b in zip(scores[: len(pairs)], scores[len(pairs) :], strict=True)]


def accuracy(model, pairs: list[EncodedPair]) -> float:
    return sum(gap > 0 for gap in gaps(model, pairs)) / len(pairs)


def test_s50_separable_pairs_are_ordered_on_pairs_never_seen():
    held_out = separable_pairs(300, 1)
    assert accuracy(tiny.reward_model(), held_out) < 0.8
    model = trained(separable_pairs(400, 0))
    assert accuracy(model, held_out) > 0.95
    assert negative_log_likelihood(gaps(model, held_out)) < 0.2


def test_s50_labels_without_meaning_teach_nothing_about_pairs_never_seen():
    """Within 3 standard errors of a half, although the training pairs are learnt by heart."""
    pairs, held_out = random_pairs(100, 0), random_pairs(600, 1)
    model = trained(pairs, RewardParams(epochs=12, batch_size=16, optimiser=PARAMS.optimiser))
    assert accuracy(model, pairs) > 0.8
    assert abs(accuracy(model, held_out) - 0.5) <= 3 * (0.25 / 600) ** 0.5
