"""Annotator quality: gold items, agreement, side bias, speed, repeats, and flags."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from feedback.quality.noise import Vote, noise_evidence
from preferences.statistics import (
    Share,
    cohen_kappa,
    first_votes,
    krippendorff_alpha,
    share,
)

LEAST_IN_COMMON = 20
"""Pairs that two annotators have both judged, below which their kappa says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityParams:
    """When an annotator is flagged, and when paused."""

    noise_alpha: float = 0.12
    """A person is flagged as noisy when the evidence exceeds log(1 / noise_alpha). By Wald's
    argument, a careful person ever gets there with at most this probability."""
    side_p: float = 0.0001
    """The side bias is flagged if its P value against one half is below this."""
    fast_share: float = 0.5
    """Share of answers faster than reading speed above which a person is flagged."""
    least: int = 20
    """Fewest answers for a check of sides and speed."""
    base_ms: int = 800
    """Shortest time in which anybody can answer a pair, however short it is."""
    characters_per_second: float = 120.0
    """Four times the speed of a fast reader; faster answers come without reading."""
    pause_below: float = 0.7
    """A person whose interval of gold accuracy lies wholly below this is paused; 0 = never."""
    pause_least: int = 5
    """Fewest known answers of a pause. It is asked after each, and two slips at the start would
    pause one in forty whose accuracy is 0.85; from five on, one in two hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A standing label with the details of its pair needed for quality checks."""

    annotator_id: str
    pair_id: str
    purpose: str
    choice: str
    strength: int | None
    left: bool | None
    """Whether the chosen response was on the left; None if neither was chosen."""
    visible_ms: int | None
    characters: int
    """Length of the prompt and both responses together."""
    gold: str | None = None
    counts: bool = True
    """False for what somebody answered before being paused and resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """One annotator's table row."""

    annotator_id: str
    answers: int
    gold: Share | None
    peers: Share | None
    repeats: Share | None
    left: Share | None
    left_p: float
    fast: Share | None
    median_seconds: float | None
    noise: float
    """Log likelihood ratio, noisy versus careful."""
    flags: tuple[str, ...]
    pause: str | None
    """Why this person is to be paused, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How much annotators agree with each other."""

    raw: Share | None
    """Share of pairs whose first two answers are the same."""
    alpha: float | None
    kappa: float | None
    """Mean of Cohen's kappa over the combinations of two annotators that are `compared`."""
    compared: int
    """Combinations of two with `LEAST_IN_COMMON` pairs or more in common."""
    met: int
    """Those with any."""


_Units = dict[str, dict[str, Answer]]
"""pair -> annotator -> answer, without gold items, repeats and skips."""
_First = list[dict[str, Answer]]
"""Of each pair the answers that every pair has, as `first_votes` chooses them, if they count."""


def judge_annotators(answers: Sequence[Answer], params: QualityParams) -> list[Quality]:
    """The quality of everybody with answers that count, sorted by name."""
    first = _first(answers)
    answers = counting(answers)
    units, noise = _units(answers), _evidence(answers)
    mine: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        mine[answer.annotator_id].append(answer)
    return [
        _judge_one(name, mine[name], (units, first, noise.get(name, 0.0)), params)
        for name in sorted(mine)
    ]


def agreement(answers: Sequence[Answer]) -> Agreement:
    """Agreement of all annotators, without gold items, repeats, skips and votes asked for later.

    Args:
        answers: in the order in which they were given.
    """
    units = [{name: answer.choice for name, answer in unit.items()} for unit in _first(answers)]
    both = [x == y for unit in units for x, y in [islice(unit.values(), 2)]]
    common = Counter(two for unit in units for two in combinations(sorted(unit), 2))
    compared = [two for two, count in common.items() if count >= LEAST_IN_COMMON]
    kappas = [cohen_kappa(units, *two) for two in compared]
    known = [kappa for kappa in kappas if kappa is not None]
    return Agreement(
        raw=share(sum(both), len(both)),
        alpha=krippendorff_alpha(units),
        kappa=statistics.fmean(known) if known else None,
        compared=len(known),
        met=len(common),
    )


def counting(answers: Sequence[Answer]) -> list[Answer]:
    """Those that count for quality."""
    return [answer for answer in answers if answer.counts]


def binomial_two_sided(hits: int, n: int) -> float:
    """P value of `hits` of `n` against one half: twice the smaller tail, at most 1."""
    # By logarithms: the integers themselves have n bits each, and time grew with the square of n.
    start, least = math.lgamma(n + 1) - n * math.log(2), min(hits, n - hits)
    ways = (math.exp(start - math.lgamma(k + 1) - math.lgamma(n - k + 1)) for k in range(least + 1))
    return min(1.0, 2 * math.fsum(ways))


def _units(answers: Sequence[Answer]) -> _Units:
    units: _Units = defaultdict(dict)
    for answer in answers:
        if answer.purpose == "label" and answer.choice != "skip":
            units[answer.pair_id][answer.annotator_id] = answer
    return units


def _first(answers: Sequence[Answer]) -> _First:
    """Chosen among all: a vote that was asked for in a dispute takes the place of no other one."""
    chosen = first_votes(_units(answers).values())
    left = ({name: found for name, found in unit.items() if found.counts} for unit in chosen)
    return [unit for unit in left if len(unit) > 1]


def _evidence(answers: Sequence[Answer]) -> dict[str, float]:
    votes = [
        Vote(answer.annotator_id, answer.pair_id, answer.choice == "a", answer.strength)
        for answer in answers
        if answer.choice in ("a", "b")
    ]
    gold = {answer.pair_id: answer.gold for answer in answers if answer.gold is not None}
    return noise_evidence(votes, gold)


def _gold(answers: Sequence[Answer]) -> Share | None:
    hits = [
        answer.choice == answer.gold
        for answer in answers
        if answer.purpose == "gold" and answer.choice != "skip"
    ]
    return share(sum(hits), len(hits))


def _repeats(answers: Sequence[Answer], units: _Units) -> Share | None:
    same = [
        answer.choice == units[answer.pair_id][answer.annotator_id].choice
        for answer in answers
        if answer.purpose == "repeat"
        and answer.choice != "skip"
        and answer.annotator_id in units.get(answer.pair_id, {})
    ]
    return share(sum(same), len(same))


def _peers(name: str, first: _First) -> Share | None:
    same = [
        unit[name].choice == answer.choice
        for unit in first
        if name in unit
        for answer in unit.values()
        if answer.annotator_id != name
    ]
    return share(sum(same), len(same))


def _judge_one(
    name: str, answers: Sequence[Answer], seen: tuple[_Units, _First, float], params: QualityParams
) -> Quality:
    units, first, noise = seen
    sides = [answer.left for answer in answers if answer.left is not None]
    timed = [answer for answer in answers if answer.visible_ms is not None]
    quality = Quality(
        annotator_id=name,
        answers=len(answers),
        gold=_gold(answers),
        peers=_peers(name, first),
        repeats=_repeats(answers, units),
        left=share(sum(sides), len(sides)),
        left_p=binomial_two_sided(sum(sides), len(sides)),
        fast=share(sum(_too_fast(answer, params) for answer in timed), len(timed)),
        median_seconds=_median_seconds(timed),
        noise=noise,
        flags=(),
        pause=None,
    )
    return _with_flags(quality, params)


def _with_flags(quality: Quality, params: QualityParams) -> Quality:
    flags = []
    if quality.noise > math.log(1 / params.noise_alpha):
        flags.append("noisy")
    left, fast = quality.left, quality.fast
    if left and left.n >= params.least and quality.left_p < params.side_p:
        flags.append("prefers the left" if left.mean > 0.5 else "prefers the right")
    if fast and fast.n >= params.least and fast.mean > params.fast_share:
        flags.append("too fast")
    return replace(quality, flags=tuple(flags), pause=pause_reason(quality.gold, params))


def pause_reason(gold: Share | None, params: QualityParams) -> str | None:
    """Why somebody with this share of correct known answers is to be paused, else None."""
    if gold is None or gold.n < params.pause_least or gold.high >= params.pause_below:
        return None
    return (
        f"{gold.hits} of {gold.n} known answers right, expected at least {params.pause_below:.0%}"
    )


def _too_fast(answer: Answer, params: QualityParams) -> bool:
    assert answer.visible_ms is not None
    reading_ms = 1000 * answer.characters / params.characters_per_second
    return answer.visible_ms < params.base_ms + reading_ms


def _median_seconds(timed: Sequence[Answer]) -> float | None:
    times = [answer.visible_ms / 1000 for answer in timed if answer.visible_ms is not None]
    return statistics.median(times) if times else None
