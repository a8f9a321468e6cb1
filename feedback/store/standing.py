"""The standing judgments: the newest revision of every finished assignment."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from feedback.judgments import Pair
from feedback.store import schema
from preferences.records import Judgment, oriented, text_hash

_NUL_SHOWN = "\u2400"
"""Stands for U+0000, which no file may hold, in reasons from before the page refused it."""
_MOST_BOUND = 500
"""Values per IN list; SQLite's smallest limit is 999."""

_labels, _assignments, _people = schema.labels, schema.assignments, schema.annotators
_STANDING = (
    select(_assignments.c.pair_id, _assignments.c.swap, _people.c.kind, _labels)
    .select_from(_assignments)
    .join(_labels, _labels.c.assignment_id == _assignments.c.assignment_id)
    .join(_people, _people.c.annotator_id == _labels.c.annotator_id)
    .where(
        _labels.c.revision == _assignments.c.revision,
        _assignments.c.state == "done",
        _assignments.c.purpose == "label",
        _assignments.c.pair_id.in_(bindparam("pairs", expanding=True)),
    )
    .order_by(_labels.c.label_id)
)


def stored_pair(row: Row[Any], round_key: str) -> Pair:
    """The pair of a row with `pair_id` and `content`."""
    # A store from before there were flags has the texts only.
    prompt, response_a, response_b, *finished = json.loads(row.content)
    finished_a, finished_b = finished or (True, True)
    return Pair(
        pair_id=row.pair_id,
        round=round_key,
        prompt=prompt,
        response_a=response_a,
        response_b=response_b,
        finished_a=finished_a,
        finished_b=finished_b,
    )


def content_of(pair: Pair) -> str:
    """What the store keeps of a pair: [prompt, response_a, response_b, finished_a, finished_b]."""
    return json.dumps(
        [pair.prompt, pair.response_a, pair.response_b, pair.finished_a, pair.finished_b]
    )


def answers(connection: Connection, pair_ids: Sequence[str]) -> dict[str, list[str]]:
    """The standing choices on each pair, without gold items and repeats."""
    found: dict[str, list[str]] = {pair_id: [] for pair_id in pair_ids}
    for row in standing_labels(connection, pair_ids):
        found[row.pair_id].append(row.choice)
    return found


def standing_labels(connection: Connection, pair_ids: Sequence[str]) -> list[Row[Any]]:
    """The newest revision of each finished assignment of these pairs, without gold and repeats."""
    return [
        row
        for chunk in chunks(pair_ids)
        for row in connection.execute(_STANDING, {"pairs": list(chunk)})
    ]


def pairs_of(connection: Connection, pair_ids: Sequence[str], round_key: str) -> list[Pair]:
    """The stored content of these pairs, in this order."""
    found = {
        row.pair_id: stored_pair(row, round_key)
        for chunk in chunks(pair_ids)
        for row in connection.execute(select(schema.pairs).where(schema.pairs.c.pair_id.in_(chunk)))
    }
    return [found[key] for key in pair_ids]


def judgments_of(connection: Connection, pairs: Sequence[Pair]) -> list[Judgment]:
    """The standing judgments of these pairs, in the order of the pairs, then by annotator."""
    labels: dict[str, list[Row[Any]]] = {pair.pair_id: [] for pair in pairs}
    for row in standing_labels(connection, list(labels)):
        labels[row.pair_id].append(row)
    content = {pair.pair_id: pair for pair in pairs_of(connection, list(labels), "")}
    return [
        oriented(_judgment(row, content[pair.pair_id]), pair)
        for pair in pairs
        for row in sorted(labels[pair.pair_id], key=lambda row: str(row.annotator_id))
    ]


def _judgment(row: Row[Any], stored: Pair) -> Judgment:
    at = datetime.fromtimestamp(row.created_ms / 1000, tz=UTC)
    return Judgment.of(
        stored,
        annotator_id=row.annotator_id,
        kind=row.kind,
        annotator_version=row.guideline_hash,
        choice=row.choice,
        strength=row.strength,
        shown_order=schema.SWAPS[row.swap],
        revision=row.revision,
        answer_a=text_hash(stored.response_a),
        created_at=at.isoformat(timespec="milliseconds"),
        latency_ms=row.visible_ms,
        reason=None if row.reason is None else row.reason.replace("\x00", _NUL_SHOWN),
        guideline_hash=row.guideline_hash,
    )


def column_in(connection: Connection, column: Any, values: Sequence[str]) -> list[str]:
    """Those of `values` that occur in the column."""
    return [
        found
        for chunk in chunks(values)
        for found in connection.execute(select(column).where(column.in_(chunk))).scalars()
    ]


def chunks(values: Sequence[str]) -> Iterable[Sequence[str]]:
    """`values` in pieces that fit into one IN list."""
    return (values[start : start + _MOST_BOUND] for start in range(0, len(values), _MOST_BOUND))
