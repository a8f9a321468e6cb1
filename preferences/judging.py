"""Turns judgments into preferences: one vote per annotator, and the majority decides.

Ties are left out or, on request, become rows with label ½; they never become a decided preference.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from preferences.records import (
    TIE,
    Comparison,
    Judgment,
    JudgmentMismatchError,
    Preference,
    Sourced,
    latest,
    oriented,
    pair_id,
)
from preferences.schemas import shown

Outcome = Literal["a", "b", "tie", "skip"]

_STRENGTH_STEPS = 3
"""Strengths 1 to 4 give margins 0, 1/3, 2/3 and 1, as in Llama 2's reward models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Fresh preferences, and counts of the comparisons that gave none."""

    rows: tuple[Sourced, ...]
    ties: int = 0
    """Judged equal or equally bad, or without a majority for either response."""
    skipped: int = 0
    """Skipped by everyone who saw it."""
    unjudged: int = 0
    """Judged by nobody."""


def judge(
    comparisons: Sequence[Comparison],
    judgments: Iterable[Judgment],
    *,
    weights: Mapping[str, float],
    keep_ties: bool = False,
) -> Judged:
    """The preferences that `judgments` give on `comparisons`, in the order of the comparisons.

    A vote has the weight of its annotator's kind (1 where `weights` has none); one of weight 0 has
    no say in anything. The preference's weight is the mean weight of the votes for the winner, its
    margin their mean strength. All preferences are on the train side until the gate splits them.
    With `keep_ties` a tie becomes a row too, with label ½, margin 0 and the mean weight of all
    votes except skips.

    Raises:
        JudgmentMismatchError: a pair occurs twice, its id does not match its content, or a judgment
            is about another pair.
    """
    pairs = _by_id(comparisons)
    votes: dict[str, list[Judgment]] = defaultdict(list)
    for judgment in standing(judgments):
        if judgment.pair_id not in pairs:
            raise JudgmentMismatchError(
                f"judgment {judgment.judgment_id}: pair {judgment.pair_id} is not among "
                f"the {len(pairs):,} comparisons of this round"
            )
        votes[judgment.pair_id].append(oriented(judgment, pairs[judgment.pair_id]))
    rows, counts = [], Counter[str]()
    for comparison in comparisons:
        cast = votes[comparison.pair_id]
        outcome = decide(cast, weights=weights) if cast else "unjudged"
        heard = [vote for vote in cast if weights.get(vote.kind, 1.0) > 0]
        if outcome in ("a", "b"):
            winning = [vote for vote in heard if vote.choice == outcome]
            preference = _preference(comparison, winning, weights)
        elif outcome == "tie" and keep_ties:
            said = [vote for vote in heard if vote.choice != "skip"]
            preference = _tie(comparison, said, weights)
        else:
            counts[outcome] += 1
            continue
        rows.append(Sourced(preference, f"comparison {comparison.pair_id}"))
    return Judged(
        rows=tuple(rows), ties=counts["tie"], skipped=counts["skip"], unjudged=counts["unjudged"]
    )


def decide(votes: Sequence[Judgment], *, weights: Mapping[str, float]) -> Outcome:
    """The side with more than half of the weight of all votes except skips, else a tie.

    `skip` if there are only skips, or if all votes have weight 0.
    """
    scores: dict[str, float] = defaultdict(float)
    for vote in votes:
        if vote.choice != "skip":
            scores[vote.choice] += weights.get(vote.kind, 1.0)
    total = sum(scores.values())
    if not total:
        return "skip"
    if 2 * scores["a"] > total:
        return "a"
    return "b" if 2 * scores["b"] > total else "tie"


def standing(judgments: Iterable[Judgment]) -> list[Judgment]:
    """The `latest` judgments, each of which must say one thing.

    Raises:
        JudgmentMismatchError: the newest revision of a judgment says two different things.
    """
    given = list(judgments)
    newest = {(one.pair_id, one.annotator_id): one for one in latest(given)}
    for judgment in given:
        stands = newest[judgment.pair_id, judgment.annotator_id]
        if stands.revision == judgment.revision and _said(stands) != _said(judgment):
            raise JudgmentMismatchError(
                f"judgments {stands.judgment_id} and {judgment.judgment_id}: both are revision "
                f"{judgment.revision} of annotator {shown(judgment.annotator_id)} on "
                f"{judgment.pair_id}"
            )
    return list(newest.values())


def _said(judgment: Judgment) -> tuple[object, ...]:
    """What two copies of a judgment must agree on; times, for example, may differ."""
    return (
        judgment.judgment_id,
        judgment.round,
        judgment.kind,
        judgment.choice,
        judgment.strength,
        judgment.answer_a,
        judgment.shown_order,
    )


def _by_id(comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
    pairs: dict[str, Comparison] = {}
    for number, comparison in enumerate(comparisons, start=1):
        expected = pair_id(comparison.prompt, comparison.response_a, comparison.response_b)
        if comparison.pair_id != expected:
            raise JudgmentMismatchError(
                f"comparison {number}: pair_id is {comparison.pair_id}, expected {expected} "
                "for this content"
            )
        if comparison.pair_id in pairs:
            raise JudgmentMismatchError(
                f"comparison {number}: pair {comparison.pair_id} occurs twice"
            )
        pairs[comparison.pair_id] = comparison
    return pairs


def _preference(
    comparison: Comparison, winning: Sequence[Judgment], weights: Mapping[str, float]
) -> Preference:
    sides = {
        "a": (comparison.response_a, comparison.finished_a),
        "b": (comparison.response_b, comparison.finished_b),
    }
    choice = winning[0].choice
    chosen, rejected = sides[choice], sides["b" if choice == "a" else "a"]
    return Preference(
        pair_id=comparison.pair_id,
        prompt_id=comparison.prompt_id,
        prompt=comparison.prompt,
        chosen=chosen[0],
        rejected=rejected[0],
        chosen_finished=chosen[1],
        rejected_finished=rejected[1],
        margin=_margin(winning),
        weight=_mean_weight(winning, weights),
        source=_source(winning),
        round=comparison.round,
        annotator_version=_versions(winning),
    )


def _tie(
    comparison: Comparison, votes: Sequence[Judgment], weights: Mapping[str, float]
) -> Preference:
    return Preference(
        pair_id=comparison.pair_id,
        prompt_id=comparison.prompt_id,
        prompt=comparison.prompt,
        chosen=comparison.response_a,
        rejected=comparison.response_b,
        chosen_finished=comparison.finished_a,
        rejected_finished=comparison.finished_b,
        weight=_mean_weight(votes, weights),
        source=_source(votes),
        round=comparison.round,
        label=TIE,
        annotator_version=_versions(votes),
    )


def _mean_weight(votes: Sequence[Judgment], weights: Mapping[str, float]) -> float:
    return sum(weights.get(vote.kind, 1.0) for vote in votes) / len(votes)


def _source(votes: Sequence[Judgment]) -> str:
    return "+".join(sorted({vote.kind for vote in votes}))


def _versions(votes: Sequence[Judgment]) -> str:
    return "+".join(sorted({vote.annotator_version for vote in votes} - {""}))


def _margin(winning: Sequence[Judgment]) -> float:
    strengths = [vote.strength for vote in winning if vote.strength is not None]
    if not strengths:
        return 0.0
    return sum(strength - 1 for strength in strengths) / (_STRENGTH_STEPS * len(strengths))
