"""The lead's page: progress of rounds, agreement, and annotators who need attention."""

from typing import Any

from sqlalchemy import Connection, select

from feedback.quality.annotators import (
    Quality,
    QualityParams,
    agreement,
    binomial_two_sided,
    judge_annotators,
)
from feedback.quality.answers import load_answers
from feedback.store import schema
from feedback.store.rounds import progress
from preferences.statistics import Share, share


def lead_view(connection: Connection, params: QualityParams) -> dict[str, Any]:
    """Everything that the page shows, as numbers and texts."""
    answers = load_answers(connection)
    people = {row.annotator_id: row for row in connection.execute(select(schema.annotators))}
    agreed = agreement(answers)
    sides = [answer.left for answer in answers if answer.left is not None]
    rows = [
        {**_row(row), "paused": people[row.annotator_id].paused_reason}
        for row in judge_annotators(answers, params)
    ]
    rows.sort(key=lambda row: (row["paused"] is None, -len(row["flags"]), row["name"]))
    return {
        "rounds": progress(connection),
        "agreement": agreed,
        "raw": interval(agreed.raw),
        "left": interval(share(sum(sides), len(sides))),
        "left_p": binomial_two_sided(sum(sides), len(sides)),
        "people": rows,
        "silent": sorted(set(people) - {row["name"] for row in rows}),
    }


def _row(quality: Quality) -> dict[str, Any]:
    return {
        "name": quality.annotator_id,
        "answers": quality.answers,
        "gold": interval(quality.gold),
        "peers": interval(quality.peers),
        "repeats": interval(quality.repeats),
        "left": interval(quality.left),
        "fast": interval(quality.fast),
        "median_seconds": quality.median_seconds,
        "noise": quality.noise,
        "flags": quality.flags,
    }


def interval(found: Share | None) -> str:
    """A share with its 95 % interval, or a dash where there is nothing yet."""
    if found is None:
        return "-"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f}, n={found.n})"
