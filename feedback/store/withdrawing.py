"""Removes what was withdrawn from the store for good: the one way around its append-only tables.

What goes is found first, as ids and counts, so that it can be shown before. Pairs that lose an
answer are settled anew: they may need another one. So are those that waited for who has gone.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select, update

from feedback.store import schema
from feedback.store.events import record
from feedback.store.rounds import settle, settle_without
from feedback.store.standing import chunks
from preferences.records import prompt_text

WITHDRAWN = "the reason was withdrawn"
"""Why somebody is paused whose reason named somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the store holds of something, by the ids of its rows."""

    annotators: tuple[str, ...]
    pairs: tuple[str, ...]
    assignments: tuple[str, ...]
    labels: tuple[int, ...]
    events: tuple[int, ...]
    pauses: tuple[str, ...]
    """Annotators who stay, and whose pause has a reason that is meant."""

    @property
    def counts(self) -> dict[str, int]:
        """Table -> number of rows, without the tables that hold none."""
        found = {
            "annotators": len(self.annotators),
            "pairs": len(self.pairs),
            "assignments": len(self.assignments),
            "labels": len(self.labels),
            "events": len(self.events),
            "pauses": len(self.pauses),
        }
        return {name: number for name, number in found.items() if number}


def held(
    connection: Connection,
    *,
    person: Callable[[str, str], bool],
    said: Callable[[str], bool],
) -> Held:
    """What the store holds of certain people and texts, and all that hangs on it.

    Args:
        connection: to the store.
        person: whether an annotator, given the name and the kind, is meant.
        said: whether a text (of a pair, of a reason, in the log) is meant.
    """
    people, pairs, labels = schema.annotators, schema.pairs, schema.labels
    columns = (people.c.annotator_id, people.c.kind, people.c.paused_reason)
    rows = connection.execute(select(*columns)).all()
    names = tuple(name for name, kind, _ in rows if person(name, kind))
    pauses = tuple(name for name, _, why in rows if name not in names and why and said(why))
    contents = connection.execute(select(pairs.c.pair_id, pairs.c.content)).all()
    meant = tuple(one for one, content in contents if any(map(said, _said(json.loads(content)))))
    reasons = select(labels.c.assignment_id, labels.c.reason).where(labels.c.reason.is_not(None))
    because = [one for one, reason in connection.execute(reasons) if said(reason)]
    asked = schema.assignments
    found = [
        *_where(connection, asked.c.assignment_id, asked.c.annotator_id, names),
        *_where(connection, asked.c.assignment_id, asked.c.pair_id, meant),
        *because,
    ]
    assignments = tuple(dict.fromkeys(found))
    return Held(
        annotators=names,
        pairs=meant,
        assignments=assignments,
        labels=tuple(_where(connection, labels.c.label_id, labels.c.assignment_id, assignments)),
        events=_events(connection, names, meant, assignments, said),
        pauses=pauses,
    )


def withdraw(connection: Connection, found: Held) -> None:
    """Delete it all; the log says how many rows, and nothing else of them."""
    asked = schema.assignments
    touched = _where(connection, asked.c.pair_id, asked.c.assignment_id, found.assignments)
    schema.unprotect(connection)
    _delete(connection, schema.labels, "label_id", found.labels)
    _delete(connection, schema.events, "event_id", found.events)
    schema.protect(connection)
    _look_at_what_comes(connection)
    _delete(connection, asked, "assignment_id", found.assignments)
    _delete(connection, schema.round_pairs, "pair_id", found.pairs)
    _delete(connection, schema.pairs, "pair_id", found.pairs)
    _delete(connection, schema.sessions, "annotator_id", found.annotators)
    _delete(connection, schema.annotators, "annotator_id", found.annotators)
    for name in found.pauses:
        mine = schema.annotators.c.annotator_id == name
        connection.execute(update(schema.annotators).where(mine).values(paused_reason=WITHDRAWN))
    settle(connection, sorted(set(touched) - set(found.pairs)))
    settle_without(connection)
    detail: dict[str, Any] = dict(found.counts)
    record(connection, "forget", **detail)


def _look_at_what_comes(connection: Connection) -> None:
    """Lets quality look at what resumed people answer next: SQLite gives removed numbers again."""
    people = schema.annotators.c
    newest = connection.execute(select(func.max(schema.labels.c.label_id))).scalar() or 0
    late = update(schema.annotators).where(people.judged_from_label > newest)
    connection.execute(late.values(judged_from_label=newest))


def _events(
    connection: Connection,
    names: Sequence[str],
    pairs: Sequence[str],
    assignments: Sequence[str],
    said: Callable[[str], bool],
) -> tuple[int, ...]:
    events = schema.events
    gone = (set(names), set(pairs), set(assignments))
    columns = (events.c.annotator_id, events.c.pair_id, events.c.assignment_id)
    found = []
    for one, detail, *ids in connection.execute(
        select(events.c.event_id, events.c.detail, *columns).order_by(events.c.event_id)
    ):
        texts = list(_texts(json.loads(detail))) if detail else []
        hangs = any(each in those for each, those in zip(ids, gone, strict=True))
        if hangs or any(said(text) or text in gone[0] for text in texts):
            found.append(one)
    return tuple(found)


def _said(content: Sequence[Any]) -> list[str]:
    """All texts of a pair, and its prompt as one text: a conversation is withdrawn as a whole."""
    return [prompt_text(content[0]), *_texts(content)]


def _texts(value: object) -> list[str]:
    """All texts in a JSON value, however deep."""
    if isinstance(value, str):
        return [value]
    inner = list(value.values()) if isinstance(value, dict) else value
    return [text for one in inner for text in _texts(one)] if isinstance(inner, list) else []


def _where(connection: Connection, wanted: Any, column: Any, values: Sequence[Any]) -> list[Any]:
    return [
        one
        for chunk in chunks(values)
        for one in connection.execute(select(wanted).where(column.in_(chunk))).scalars()
    ]


def _delete(connection: Connection, table: Table, column: str, values: Sequence[Any]) -> None:
    for chunk in chunks(values):
        connection.execute(delete(table).where(table.c[column].in_(chunk)))
