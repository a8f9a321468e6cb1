"""Reads from the store what quality needs, and acts on what it finds."""

import json
from typing import Any

from sqlalchemy import Connection, Row, select

from feedback import accounts, schema
from feedback.quality import Answer, Quality, QualityParams, judge_annotators


def load_answers(connection: Connection) -> list[Answer]:
    """All standing labels of people, without those from before an annotator was resumed."""
    labels, assignments = schema.labels, schema.assignments
    people, pairs = schema.annotators, schema.pairs
    query = (
        select(labels, assignments.c.pair_id, assignments.c.purpose, assignments.c.swap)
        .add_columns(pairs.c.content, pairs.c.gold)
        .join(assignments, assignments.c.assignment_id == labels.c.assignment_id)
        .join(people, people.c.annotator_id == labels.c.annotator_id)
        .join(pairs, pairs.c.pair_id == assignments.c.pair_id)
        .where(
            labels.c.revision == assignments.c.revision,
            labels.c.label_id > people.c.judged_from_label,
            assignments.c.state == "done",
            people.c.kind == "human",
        )
        .order_by(labels.c.label_id)
    )
    return [_answer(row) for row in connection.execute(query)]


def pause_the_poor(connection: Connection, params: QualityParams) -> list[Quality]:
    """Pauses everybody whose gold accuracy is below the threshold; returns who was paused."""
    active = select(schema.annotators.c.annotator_id).where(
        schema.annotators.c.paused_reason.is_(None)
    )
    names = set(connection.execute(active).scalars())
    table = judge_annotators(load_answers(connection), params)
    poor = [row for row in table if row.pause is not None and row.annotator_id in names]
    for row in poor:
        accounts.pause(connection, row.annotator_id, str(row.pause))
    return poor


def _answer(row: Row[Any]) -> Answer:
    left = None
    if row.choice in ("a", "b"):
        left = (row.choice == "a") != bool(row.swap)
    prompt, response_a, response_b = json.loads(row.content)
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
    )
