"""Formats with individual votes or scores: scored responses, and votes.

- `scored`: `prompt`, `responses` (two or more), and `scores` (higher is better) or `ranks` (1 is
  best). Any two responses form a pair, up to a limit; the difference of their scores is its margin.
- `votes`: `prompt`, `response_a`, `response_b`, `votes` (a, b, tie, both_bad, skip), `workers`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from preferences.formats.pairs import preference_of
from preferences.formats.sampling import check_votes, pairs_within
from preferences.opening import USUAL_LIMITS, Limits
from preferences.records import (
    CHOICES,
    Choice,
    Comparison,
    Judgment,
    Preference,
    Prompt,
    Row,
    ShownOrder,
    Voted,
    compact_json,
    composed,
    pair_id,
    prompt_text,
    text_hash,
)
from preferences.row_values import RowError
from preferences.schemas import Field, Schema

_PROMPT = Field(name="prompt", kind="prompt", filled=True)
_RESPONSES = (Field(name="response_a"), Field(name="response_b"))
FINISHED = ("finished_a", "finished_b")
_IDS = (
    *(Field(name=name, kind="truth", required=False, nullable=True) for name in FINISHED),
    Field(name="prompt_id", filled=True, required=False, nullable=True),
    Field(name="round", required=False, nullable=True),
)

SCORED = Schema(
    "scored responses",
    (
        _PROMPT,
        Field(name="responses", kind="list"),
        Field(name="scores", kind="list", required=False, nullable=True),
        Field(name="ranks", kind="list", required=False, nullable=True),
        *_IDS,
    ),
    unknown="leave out",
)
VOTES = Schema(
    "votes",
    (
        _PROMPT,
        *_RESPONSES,
        Field(name="votes", kind="list"),
        Field(name="workers", kind="list"),
        *_IDS,
    ),
    unknown="leave out",
)
_STRENGTHS = {1 / 3: 2, 2 / 3: 3, 1: 4}
"""Margin -> strength; a margin of 0 belongs to a vote without strength."""


def scored_from_row(
    row: Mapping[str, Any], where: str, limits: Limits = USUAL_LIMITS
) -> tuple[list[Preference | Voted], int]:
    """Pairs of a row's responses, and the number of those left out; equal scores are ties.

    Raises:
        RowError: there is not exactly one number per response.
    """
    responses, worth = row["responses"], _worth(row)
    if len(responses) != len(worth) or len(responses) < 2:
        found = f"{len(responses)} responses and {len(worth)} scores or ranks"
        raise RowError(f"found {found}, expected equal numbers of at least 2")
    if not all(isinstance(response, str) for response in responses):
        raise RowError('field "responses": expected a list of texts')
    places, left = pairs_within(
        range(len(responses)), limits.pairs_of_prompt, prompt_text(row["prompt"])
    )
    return [_scored_pair(row, worth, place, where) for place in places], left


def _scored_pair(
    row: Mapping[str, Any], worth: Sequence[float], place: tuple[int, int], where: str
) -> Preference | Voted:
    one, other = place
    responses = row["responses"]
    if worth[one] == worth[other]:
        return voted(row, (responses[one], responses[other]), [("scores", "tie")], where)
    better, worse = (one, other) if worth[one] > worth[other] else (other, one)
    margin = worth[better] - worth[worse] if row.get("scores") is not None else 0.0
    if not math.isfinite(margin):
        raise RowError('field "scores": the difference between two of them is not finite')
    pair = responses[better], responses[worse]
    preference = preference_of(row, row["prompt"], *pair, ("prompt_id", "round"))
    return replace(preference, margin=margin)


def _worth(row: Mapping[str, Any]) -> list[float]:
    given = [name for name in ("scores", "ranks") if row.get(name) is not None]
    if len(given) != 1:
        raise RowError('expected either "scores" or "ranks"')
    values = row[given[0]]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise RowError(f'field "{given[0]}": expected a list of numbers')
    return [float(value if given[0] == "scores" else -value) for value in values]


def votes_from_row(row: Mapping[str, Any], where: str, limits: Limits = USUAL_LIMITS) -> Voted:
    """The pair of a row with one judgment per worker.

    Raises:
        RowError: votes and workers do not match, or a vote is unknown, or there are too many.
    """
    votes = row["votes"]
    check_votes(len(votes), limits)
    workers = [_name(worker) for worker in row["workers"]]
    if len(votes) != len(workers):
        raise RowError(f"found {len(votes)} votes and {len(workers)} workers, expected one of each")
    for vote in votes:
        if vote not in CHOICES:
            raise RowError(f'field "votes": expected one of {", ".join(CHOICES)}')
    if len(set(workers)) != len(workers):
        raise RowError('field "workers": a worker occurs twice')
    cast = list(zip(workers, votes, strict=True))
    return voted(row, (row["response_a"], row["response_b"]), cast, where)


def _name(worker: object) -> str:
    """A worker's name; third-party data often number their workers."""
    if isinstance(worker, int) and not isinstance(worker, bool):
        return str(worker)
    if not isinstance(worker, str) or not worker.strip():
        raise RowError('field "workers": expected a list of names')
    return composed(worker)


def votes_to_row(item: Voted) -> Row:
    """The row of a pair and its votes."""
    comparison = item.comparison
    return {
        "prompt_id": comparison.prompt_id,
        "prompt": comparison.prompt,
        "response_a": comparison.response_a,
        "response_b": comparison.response_b,
        "finished_a": comparison.finished_a,
        "finished_b": comparison.finished_b,
        "votes": [judgment.choice for judgment in item.judgments],
        "workers": [judgment.annotator_id for judgment in item.judgments],
        "round": comparison.round,
    }


def voted_of(preference: Preference, where: str) -> Voted:
    """A preference as one vote of its source; the pair's id decides which side is a.

    A tie keeps its sides, since they favour neither response.
    """
    swapped = int(preference.pair_id, 16) % 2 == 1 and not preference.is_tie
    responses = (preference.chosen, preference.rejected)
    finished = (preference.chosen_finished, preference.rejected_finished)
    row = {name: getattr(preference, name) for name in ("prompt_id", "prompt", "round")}
    row |= dict(zip(FINISHED, finished[::-1] if swapped else finished, strict=True))
    choice: Choice = "tie" if preference.is_tie else "b" if swapped else "a"
    source = preference.source if preference.source.strip() else "import"
    item = voted(row, responses[::-1] if swapped else responses, [(source, choice)], where)
    (vote,) = item.judgments
    vote = replace(
        vote,
        kind=source,
        strength=strength_of(preference),
        annotator_version=preference.annotator_version,
    )
    return replace(item, judgments=(vote,))


def strength_of(preference: Preference) -> int | None:
    """The strength that corresponds to the margin, if there is one."""
    return None if preference.is_tie else _STRENGTHS.get(preference.margin)


def voted(
    row: Mapping[str, Any],
    responses: tuple[str, str],
    cast: Sequence[tuple[str, Choice]],
    where: str,
    order: ShownOrder | None = None,
) -> Voted:
    """A pair with one judgment for each worker and choice in `cast`."""
    prompt: Prompt = row["prompt"]
    identity = pair_id(prompt, *responses)
    round_key = row.get("round") or ""
    comparison = Comparison(
        pair_id=identity,
        round=round_key if round_key.strip() else "import",
        prompt_id=row.get("prompt_id") or text_hash(prompt_text(prompt)),
        prompt=prompt,
        response_a=responses[0],
        response_b=responses[1],
        **{name: row[name] for name in FINISHED if row.get(name) is not None},
        policy_a="unknown",
        policy_b="unknown",
    )
    judgments = tuple(
        Judgment(
            judgment_id=text_hash(compact_json([identity, worker, choice])),
            pair_id=identity,
            round=comparison.round,
            annotator_id=worker,
            kind="import",
            choice=choice,
            shown_order=order,
            revision=1,
            answer_a=text_hash(responses[0]),
        )
        for worker, choice in cast
    )
    return Voted(comparison=comparison, judgments=judgments, where=where)
