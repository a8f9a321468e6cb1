"""The lead's page: progress of rounds, agreement, and annotators who need attention."""

from typing import Any

from sqlalchemy import Connection, select

from feedback.quality.annotators import (
    Quality,
    QualityParams,
    agreement,
    binomial_two_sided,
    counting,
    judge_annotators,
)
from feedback.quality.answers import load_answers
from feedback.store import schema
from feedback.store.rounds import progress
from preferences.statistics import Share, share

_SHARES = ("gold", "peers", "repeats", "left", "fast")
"""Fields of somebody's quality that are shares with intervals, or None where there is nothing."""


def lead_view(connection: Connection, params: QualityParams) -> dict[str, Any]:
    """Everything that the page shows, as numbers and texts."""
    answers = load_answers(connection)
    people = {row.annotator_id: row for row in connection.execute(select(schema.annotators))}
    agreed = agreement(answers)
    sides = [answer.left for answer in counting(answers) if answer.left is not None]
    rows = [_row(row) for row in judge_annotators(answers, params)]
    # Who was resumed has no answers that count; they too can be paused again.
    hired = {name for name, row in people.items() if row.role != "source"}
    rows += [{**_SILENT, "name": name} for name in hired - {row["name"] for row in rows}]
    for row in rows:
        row["paused"] = people[row["name"]].paused_reason
    rows.sort(key=_attention)
    return {
        "rounds": progress(connection),
        "agreement": agreed,
        "raw": interval(agreed.raw),
        "left": interval(share(sum(sides), len(sides))),
        "left_p": binomial_two_sided(sum(sides), len(sides)),
        "people": rows,
    }


def _attention(row: dict[str, Any]) -> tuple[bool, int, bool, str]:
    return row["paused"] is None, -len(row["flags"]), row["answers"] == 0, row["name"]


def _row(quality: Quality) -> dict[str, Any]:
    return {
        "name": quality.annotator_id,
        "answers": quality.answers,
        **{name: getattr(quality, name) for name in _SHARES},
        "median_seconds": quality.median_seconds,
        "noise": quality.noise,
        "flags": quality.flags,
    }


_SILENT: dict[str, Any] = {
    **dict.fromkeys(_SHARES),
    "answers": 0,
    "median_seconds": None,
    "noise": 0.0,
    "flags": (),
}
"""The row of somebody without answers that count."""


def interval(found: Share | None) -> str:
    """A share with its 95 % interval, or a dash where there is nothing yet."""
    if found is None:
        return "-"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f}, n={found.n})"
