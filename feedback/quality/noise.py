"""Detects annotators who flip choices at random, with a latent-truth model of two kinds.

After Dawid and Skene (1979). Each pair has a better response. A careful annotator finds it with a
probability that grows with the strength they give; a noisy one does the same and then flips a
quarter of their choices. Pairs, accuracies and kinds are estimated in turn from all votes for a or
b, so that a vote against a careful majority weighs more than one against a single person, and a
vote on a gold item weighs most. The evidence against a person is the log likelihood ratio, noisy
versus careful, of all their votes given everybody else's.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TURNED = 0.25
"""Share of choices that the noisy annotator flips. A little below the 0.3 that must be detected
within 100 items: such annotators flip 20 to 40 of 100, and those with few flips count too."""
_ROUNDS = 6
"""Iterations of the estimation; after four, the numbers are stable to two digits."""
_PRIOR_NOISY = 0.1
"""Prior share of noisy annotators."""
_RIGHT, _WRONG = 8.5, 1.5
"""Prior counts of right and wrong votes for each strength: accuracy 0.85."""
_GOLD_ODDS = math.log(500)
"""Log odds that a gold item's known answer is right: people write gold items too."""


@dataclass(frozen=True, slots=True)
class Vote:
    """A choice between a and b."""

    annotator_id: str
    pair_id: str
    for_a: bool
    strength: int | None


def noise_evidence(votes: Sequence[Vote], gold: Mapping[str, str]) -> dict[str, float]:
    """Log likelihood ratio, noisy versus careful, of everybody who voted.

    `gold` maps the ids of gold items to their right choice.
    """
    units: dict[str, list[Vote]] = defaultdict(list)
    for vote in votes:
        units[vote.pair_id].append(vote)
    known = {key: _GOLD_ODDS if gold[key] == "a" else -_GOLD_ODDS for key in units if key in gold}
    accuracy = dict.fromkeys((None, 1, 2, 3, 4), _RIGHT / (_RIGHT + _WRONG))
    evidence = dict.fromkeys(sorted({vote.annotator_id for vote in votes}), 0.0)
    for _ in range(_ROUNDS):
        noisy = {name: _sigmoid(_logit(_PRIOR_NOISY) + ratio) for name, ratio in evidence.items()}
        odds = {
            key: _odds(unit, accuracy, noisy, known.get(key, 0.0)) for key, unit in units.items()
        }
        accuracy = _accuracies(votes, odds, noisy)
        evidence = dict.fromkeys(evidence, 0.0)
        for key, unit in units.items():
            for name in {vote.annotator_id for vote in unit}:
                others = [vote for vote in unit if vote.annotator_id != name]
                own = [vote for vote in unit if vote.annotator_id == name]
                prior = _odds(others, accuracy, noisy, known.get(key, 0.0))
                evidence[name] += _log_ratio(own, accuracy, prior)
    return evidence


def _odds(
    unit: Iterable[Vote],
    accuracy: Mapping[int | None, float],
    noisy: Mapping[str, float],
    known: float,
) -> float:
    """Log odds that a is the better response, from these votes and prior knowledge of the pair."""
    total = known
    for vote in unit:
        careful = accuracy[vote.strength]
        turned = TURNED * noisy[vote.annotator_id]
        right = (1 - turned) * careful + turned * (1 - careful)
        total += _logit(right) if vote.for_a else -_logit(right)
    return total


def _accuracies(
    votes: Sequence[Vote], odds: Mapping[str, float], noisy: Mapping[str, float]
) -> dict[int | None, float]:
    """How often a careful annotator is right, by the strength they give; at least one half."""
    right: dict[int | None, float] = dict.fromkeys((None, 1, 2, 3, 4), _RIGHT)
    wrong: dict[int | None, float] = dict.fromkeys((None, 1, 2, 3, 4), _WRONG)
    for vote in votes:
        hit = _sigmoid(odds[vote.pair_id] if vote.for_a else -odds[vote.pair_id])
        weight = 1 - noisy[vote.annotator_id]
        right[vote.strength] += weight * hit
        wrong[vote.strength] += weight * (1 - hit)
    return {key: max(0.5, right[key] / (right[key] + wrong[key])) for key in right}


def _log_ratio(own: Sequence[Vote], accuracy: Mapping[int | None, float], prior: float) -> float:
    """Log of P(own votes | noisy) / P(own votes | careful), marginalised over the truth."""
    a_is_better = _sigmoid(prior)
    careful_a = careful_b = noisy_a = noisy_b = 1.0
    for vote in own:
        p = accuracy[vote.strength]
        q = (1 - TURNED) * p + TURNED * (1 - p)
        careful_a *= p if vote.for_a else 1 - p
        careful_b *= 1 - p if vote.for_a else p
        noisy_a *= q if vote.for_a else 1 - q
        noisy_b *= 1 - q if vote.for_a else q
    careful = a_is_better * careful_a + (1 - a_is_better) * careful_b
    noisy = a_is_better * noisy_a + (1 - a_is_better) * noisy_b
    return math.log(noisy / careful)


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
