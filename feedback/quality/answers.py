"""Reads the answers for quality checks from the store, and pauses inaccurate annotators."""

import json
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, or_, select

from feedback.quality.annotators import Answer, QualityParams, pause_reason
from feedback.store import accounts, schema
from feedback.store.database import Database
from preferences.statistics import Share, share


def load_answers(connection: Connection) -> list[Answer]:
    """All labels by people that stand, oldest first; which of them count is said of each."""
    labels, assignments = schema.labels, schema.assignments
    people, pairs = schema.annotators, schema.pairs
    query = (
        select(labels, assignments.c.pair_id, assignments.c.purpose, assignments.c.swap)
        .add_columns(pairs.c.content, pairs.c.gold, _since_resumed().label("counts"))
        .join(assignments, assignments.c.assignment_id == labels.c.assignment_id)
        .join(people, people.c.annotator_id == labels.c.annotator_id)
        .join(pairs, pairs.c.pair_id == assignments.c.pair_id)
        .where(_stands(), people.c.kind == "human")
        .order_by(labels.c.label_id)
    )
    return [_answer(row) for row in connection.execute(query)]


def pause_inaccurate(database: Database, params: QualityParams) -> dict[str, str]:
    """Pauses everybody whose gold accuracy is below the threshold; returns name -> reason.

    Reads without blocking anybody, and writes only if somebody is to be paused.
    """
    with database.reading() as connection:
        shares = gold_shares(connection)
    poor = {
        name: reason
        for name, found in shares.items()
        if (reason := pause_reason(found, params)) is not None
    }
    if poor:
        with database.writing() as connection:
            for name, reason in poor.items():
                accounts.pause(connection, name, reason)
    return poor


def gold_shares(connection: Connection) -> dict[str, Share]:
    """Name -> share of correct known answers, for all active people; counted by the database."""
    labels, assignments = schema.labels, schema.assignments
    people, pairs = schema.annotators, schema.pairs
    hits = func.sum(case((labels.c.choice == pairs.c.gold, 1), else_=0))
    query = (
        select(labels.c.annotator_id, hits.label("hits"), func.count().label("n"))
        .select_from(assignments)
        .join(labels, labels.c.assignment_id == assignments.c.assignment_id)
        .join(people, people.c.annotator_id == labels.c.annotator_id)
        .join(pairs, pairs.c.pair_id == assignments.c.pair_id)
        .where(
            _stands(), _since_resumed(), people.c.kind == "human", people.c.paused_reason.is_(None)
        )
        .where(assignments.c.purpose == "gold", labels.c.choice != "skip")
        .group_by(labels.c.annotator_id)
    )
    return {
        row.annotator_id: found
        for row in connection.execute(query)
        if (found := share(int(row.hits), row.n))
    }


def _stands() -> ColumnElement[bool]:
    """Condition on a label with its assignment: it is the one to look at.

    Of a pair, that is the standing answer; of a known item or a repeat the first one, whatever was
    undone later, so that a second look at a check improves nothing.
    """
    labels, assignments = schema.labels, schema.assignments
    standing = and_(labels.c.revision == assignments.c.revision, assignments.c.state == "done")
    return or_(
        and_(assignments.c.purpose == "label", standing),
        and_(assignments.c.purpose != "label", labels.c.revision == 1),
    )


def _since_resumed() -> ColumnElement[bool]:
    """Condition on a label with its annotator: it counts, being none from before a pause."""
    return schema.labels.c.label_id > schema.annotators.c.judged_from_label


def _answer(row: Row[Any]) -> Answer:
    left, order = None, schema.SWAPS[row.swap]
    if row.choice in ("a", "b") and order is not None:
        left = (row.choice == "a") == (order == "AB")
    prompt, response_a, response_b, *_ = json.loads(row.content)
    characters = len(response_a) + len(response_b) + len(str(prompt))
    return Answer(
        annotator_id=row.annotator_id,
        pair_id=row.pair_id,
        purpose=row.purpose,
        choice=row.choice,
        strength=row.strength,
        left=left,
        visible_ms=row.visible_ms,
        characters=characters,
        gold=row.gold if row.purpose == "gold" else None,
        counts=bool(row.counts),
    )
