"""Answers that come in: checked, written once, undone by a further revision."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from feedback import schema
from feedback.assignments import Task, find_task, free_expired, has_room
from feedback.database import now_ms
from feedback.events import record
from feedback.rounds import settle
from preferences.records import Choice

WITHDRAWN = "withdrawn"
"""The choice of a revision that takes an answer back."""

_MOST_UNDONE = 10
"""Answers that can be taken back, one after the other."""

# Built once, as in `feedback.assignments`.
_BY_KEY = select(schema.labels).where(
    schema.labels.c.annotator_id == bindparam("mine"),
    schema.labels.c.submission_key == bindparam("key"),
)
_TIMES_CONTAINED = select(func.count()).where(
    schema.round_pairs.c.pair_id == bindparam("pair"), schema.round_pairs.c.active == 1
)
_ADD_LABEL = insert(schema.labels)
_CLOSE = (
    update(schema.assignments)
    .where(schema.assignments.c.assignment_id == bindparam("assignment"))
    .values(state=bindparam("to"), revision=bindparam("newest"))
)


class RefusedError(Exception):
    """An answer that is not taken; the message says why, to the person who gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """An answer as the page sends it: sides, not answers."""

    assignment_id: str
    choice: str
    """left, right, tie, both_bad or skip."""
    strength: int | None
    reason: str | None
    visible_ms: int | None
    """How long the pair was visible, as the page says; never more than since it was served."""
    key: str
    """Made up by the page for this answer: the same key again is the same answer."""
    guideline_hash: str


def submit(connection: Connection, annotator_id: str, given: Submission) -> bool:
    """Writes the answer; false if it had been written before.

    Raises:
        RefusedError: not this person's, answered already, its lease ran out and somebody else took
            the pair, or the round no longer contains the pair.
    """
    free_expired(connection)
    task = find_task(connection, given.assignment_id)
    if task is None or task.annotator_id != annotator_id:
        raise RefusedError("this pair was not given to you")
    choice = stored_choice(given.choice, swap=task.swap)
    if _written_before(connection, annotator_id, given, choice):
        return False
    _refuse_if_closed(connection, task)
    strength = given.strength if choice in ("a", "b") else None
    at = now_ms()
    waited = at - task.served_ms
    _write(
        connection,
        task,
        task.revision + 1,
        choice=choice,
        strength=strength,
        reason=given.reason,
        visible_ms=None if given.visible_ms is None else min(given.visible_ms, waited),
        submission_key=given.key,
        guideline_hash=given.guideline_hash,
        created_ms=at,
    )
    return True


def stored_choice(shown: str, *, swap: bool) -> Choice:
    """The answer that a side of the screen stands for."""
    if shown in ("left", "right"):
        return "a" if (shown == "left") != swap else "b"
    return shown  # type: ignore[return-value]  # the server has checked it against the five


def undo(connection: Connection, annotator_id: str, *, key: str, lease_ms: int) -> Task | None:
    """Takes the person's last standing answer back and gives them its pair again.

    None when there is nothing (more) to take back, or when this key has done so before.

    Raises:
        RefusedError: the round no longer contains the pair.
    """
    last = _last_answer(connection, annotator_id)
    if last is None or _key_row(connection, annotator_id, key) is not None:
        return None
    task = find_task(connection, last.assignment_id)
    assert task is not None
    if not _contained(connection, task):
        raise RefusedError(f"round {task.round} no longer contains this pair")
    table = schema.assignments
    mine = (table.c.annotator_id == annotator_id, table.c.state == "open")
    connection.execute(update(table).where(*mine).values(state="free"))
    _write(
        connection,
        task,
        last.revision + 1,
        choice=WITHDRAWN,
        submission_key=key,
        guideline_hash=last.guideline_hash,
        created_ms=now_ms(),
    )
    where = table.c.assignment_id == task.assignment_id
    lease = {"state": "open", "lease_until_ms": now_ms() + lease_ms, "served_ms": now_ms()}
    connection.execute(update(table).where(where).values(**lease))
    return find_task(connection, task.assignment_id)


def _last_answer(connection: Connection, annotator_id: str) -> Row[Any] | None:
    """The newest answer that stands, unless ten have been taken back in a row."""
    labels = schema.labels
    mine = select(labels.c.choice).where(labels.c.annotator_id == annotator_id)
    newest = mine.order_by(labels.c.label_id.desc()).limit(_MOST_UNDONE)
    choices = list(connection.execute(newest).scalars())
    if len(choices) == _MOST_UNDONE and set(choices) == {WITHDRAWN}:
        return None
    table = schema.assignments
    query = (
        select(labels)
        .join(table, table.c.assignment_id == labels.c.assignment_id)
        .where(labels.c.annotator_id == annotator_id, table.c.state == "done")
        .where(labels.c.revision == table.c.revision)
        .order_by(labels.c.label_id.desc())
    )
    return connection.execute(query.limit(1)).first()


def _written_before(
    connection: Connection, annotator_id: str, given: Submission, choice: str
) -> bool:
    row = _key_row(connection, annotator_id, given.key)
    if row is None:
        return False
    if (row.assignment_id, row.choice) != (given.assignment_id, choice):
        raise RefusedError("this submission key was used for another answer")
    return True


def _key_row(connection: Connection, annotator_id: str, key: str) -> Row[Any] | None:
    return connection.execute(_BY_KEY, {"mine": annotator_id, "key": key}).first()


def _refuse_if_closed(connection: Connection, task: Task) -> None:
    if task.state == "done":
        raise RefusedError("you have answered this pair; undo to change the answer")
    if not _contained(connection, task):
        raise RefusedError(
            f"round {task.round} no longer contains this pair: its samples have changed"
        )
    if task.state == "open" or task.purpose != "label":
        return
    if not has_room(connection, task.pair.pair_id, task.round):
        raise RefusedError("your time for this pair ran out and somebody else has taken it")


def _contained(connection: Connection, task: Task) -> bool:
    if task.purpose == "gold":
        return True
    return bool(connection.execute(_TIMES_CONTAINED, {"pair": task.pair.pair_id}).scalar_one())


def _write(connection: Connection, task: Task, revision: int, **values: Any) -> None:
    """Adds the label, closes the assignment, brings the pair up to date and logs it."""
    row = {"assignment_id": task.assignment_id, "annotator_id": task.annotator_id}
    connection.execute(_ADD_LABEL, [row | {"revision": revision} | values])
    withdrawn = values["choice"] == WITHDRAWN
    closed = {"assignment": task.assignment_id, "newest": revision}
    connection.execute(_CLOSE, closed | {"to": "free" if withdrawn else "done"})
    if task.purpose == "label":
        settle(connection, [task.pair.pair_id])
    record(
        connection,
        "undo" if withdrawn else "label",
        annotator_id=task.annotator_id,
        round_key=task.round,
        pair_id=task.pair.pair_id,
        assignment_id=task.assignment_id,
        revision=revision,
        choice=values["choice"],
    )
