"""Imports judgments made elsewhere into the store."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from feedback.judgments import Refusal, consistent
from feedback.store import schema
from feedback.store.accounts import known_as
from feedback.store.database import now_ms
from feedback.store.events import record
from feedback.store.names import check_name
from feedback.store.rounds import round_pair_ids, settle
from feedback.store.standing import pairs_of
from preferences.records import Judgment, JudgmentError, oriented

# Built once, as in `feedback.store.assignments`: a file has tens of thousands of judgments, and
# nobody's answer is saved meanwhile.
_labels, _table, _people = schema.labels, schema.assignments, schema.annotators
_KIND = select(_people.c.kind).where(_people.c.annotator_id == bindparam("name"))
_MINE = select(_table).where(
    _table.c.pair_id == bindparam("pair"),
    _table.c.annotator_id == bindparam("mine"),
    _table.c.purpose == "label",
)
_SAID = select(_labels.c.choice, _labels.c.strength).where(
    _labels.c.assignment_id == bindparam("assignment"), _labels.c.revision == bindparam("newest")
)
_ADD_LABEL, _ADD_ASSIGNMENT = insert(_labels), insert(_table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of the judgments of a file."""

    taken: int
    known: int
    """Already in the store."""
    refused: list[Refusal]


def take(connection: Connection, judgments: Sequence[Judgment], round_key: str) -> Imported:
    """Writes judgments for the round; refuses those of pairs outside it, and contradictions."""
    held = pairs_of(connection, round_pair_ids(connection, round_key), round_key)
    pairs = {pair.pair_id: pair for pair in held}
    taken: list[str] = []
    known = 0
    standing, refused = consistent(_as_known(connection, judgments), pairs)
    for judgment in standing:
        pair = pairs.get(judgment.pair_id)
        try:
            if pair is None:
                raise JudgmentError(f"round {round_key} does not contain the pair")
            if _take_one(connection, oriented(judgment, pair)):
                taken.append(judgment.pair_id)
            else:
                known += 1
        except JudgmentError as error:
            refused.append(Refusal(judgment_id=judgment.judgment_id, reason=str(error)))
    settle(connection, sorted(set(taken)))
    if taken:
        record(connection, "import", round_key=round_key, taken=len(taken), refused=len(refused))
    return Imported(taken=len(taken), known=known, refused=refused)


def _as_known(connection: Connection, judgments: Sequence[Judgment]) -> list[Judgment]:
    """The judgments with the names that the store has for their annotators."""
    given = {judgment.annotator_id for judgment in judgments}
    names = {name: known_as(connection, name) for name in given}
    return [replace(one, annotator_id=names[one.annotator_id]) for one in judgments]


def _take_one(connection: Connection, judgment: Judgment) -> bool:
    """Writes one judgment; False if it is already stored."""
    _hire(connection, judgment)
    row = _assignment(connection, judgment)
    if row is not None and row.state == "done":
        this = {"assignment": row.assignment_id, "newest": row.revision}
        held = connection.execute(_SAID, this).one()
        if (held.choice, held.strength) == (judgment.choice, judgment.strength):
            return False
        raise JudgmentError(f"{judgment.annotator_id} has judged this pair differently")
    at = _milliseconds(judgment)
    assignment_id, revision = _close(connection, judgment, row, at)
    label = {
        "assignment_id": assignment_id,
        "annotator_id": judgment.annotator_id,
        "revision": revision,
        "choice": judgment.choice,
        "strength": judgment.strength,
        "reason": judgment.reason,
        "visible_ms": judgment.latency_ms,
        "submission_key": f"import-{assignment_id}-{revision}",
        "guideline_hash": judgment.annotator_version[:16],
        "created_ms": at,
    }
    connection.execute(_ADD_LABEL, [label])
    return True


def _assignment(connection: Connection, judgment: Judgment) -> Row[Any] | None:
    """This annotator's assignment to judge this pair, in any state."""
    mine = {"pair": judgment.pair_id, "mine": judgment.annotator_id}
    return connection.execute(_MINE, mine).first()


def _close(
    connection: Connection, judgment: Judgment, row: Row[Any] | None, at: int
) -> tuple[str, int]:
    """A finished assignment for the judgment, and the revision of its label.

    The pair may be, or may have been, on the annotator's screen: the table then has a `row`.
    """
    values = {"round": judgment.round, "swap": schema.SWAPS.index(judgment.shown_order)}
    values |= {"state": "done", "lease_until_ms": at, "served_ms": at}
    if row is not None:
        revision = row.revision + 1
        this = update(_table).where(_table.c.assignment_id == row.assignment_id)
        connection.execute(this.values(**values, revision=revision))
        return row.assignment_id, revision
    assignment_id = secrets.token_hex(16)
    key = {"assignment_id": assignment_id, "annotator_id": judgment.annotator_id}
    key |= {"pair_id": judgment.pair_id, "purpose": "label"}
    connection.execute(_ADD_ASSIGNMENT, [key | values | {"revision": 1}])
    return assignment_id, 1


def _hire(connection: Connection, judgment: Judgment) -> None:
    """Creates the annotator if needed, without a way to sign in.

    Raises:
        JudgmentError: the name cannot be seen, or belongs to another kind of annotator.
    """
    kind = connection.execute(_KIND, {"name": judgment.annotator_id}).scalar()
    if kind is None:
        try:
            check_name(judgment.annotator_id)
        except ValueError as error:
            raise JudgmentError(str(error)) from error
        nobody_knows = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
        row = {"annotator_id": judgment.annotator_id, "role": "source", "kind": judgment.kind}
        row |= {"token_hash": nobody_knows}
        connection.execute(insert(_people).values(**row, created_ms=now_ms(), judged_from_label=0))
    elif kind != judgment.kind:
        raise JudgmentError(f"{judgment.annotator_id} is known as {kind}, not {judgment.kind}")


def _milliseconds(judgment: Judgment) -> int:
    if judgment.created_at is None:
        return now_ms()
    at = datetime.fromisoformat(judgment.created_at)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    # Leases go by the newest time in the store: one in the future would end all of them.
    return min(now_ms(), round(1000 * at.timestamp()))
