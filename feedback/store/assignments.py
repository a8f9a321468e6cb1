"""Assigns pairs to people under leases.

All functions run inside one write transaction, so each sees every earlier decision. An assignment
is `open` during its lease, `done` once answered, or `free` after its lease expired or it was
returned; the pair of a free assignment may go to somebody else, or to the same person again.

Statements used by every request are built once, as constants: building one takes SQLAlchemy longer
than executing it takes SQLite.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, exists, func, select, update

from feedback.judgments import Pair
from feedback.store import schema
from feedback.store.database import steady_ms
from feedback.store.events import record
from feedback.store.standing import stored_pair

_table, _rows, _rounds = schema.assignments, schema.round_pairs, schema.rounds
_mine = _table.c.annotator_id == bindparam("mine")
_tasks = (
    select(_table, schema.pairs.c.content)
    .join(schema.pairs, schema.pairs.c.pair_id == _table.c.pair_id)
    .order_by(_table.c.served_ms)
)
_BY_ID = _tasks.where(_table.c.assignment_id == bindparam("assignment"))
_HELD = _tasks.where(_mine, _table.c.state == "open")
_PROLONG = (
    update(_table)
    .where(_table.c.assignment_id == bindparam("assignment"))
    .values(lease_until_ms=bindparam("until"))
)
_FREE = update(_table).where(_table.c.assignment_id == bindparam("assignment")).values(state="free")
_FREE_EXPIRED = (
    update(_table)
    .where(_table.c.state == "open", _table.c.lease_until_ms < bindparam("now"))
    .values(state="free")
    .returning(_table.c.assignment_id, _table.c.annotator_id, _table.c.round, _table.c.pair_id)
)
_TAKE_UP_AGAIN = (
    update(_table)
    .where(_table.c.pair_id == bindparam("pair"), _mine)
    .where(_table.c.purpose == bindparam("why"), _table.c.state == "free")
    .values(
        round=bindparam("round_key"),
        state="open",
        lease_until_ms=bindparam("until"),
        served_ms=bindparam("at"),
    )
    .returning(_table.c.assignment_id)
)
_INSERT = _table.insert()
_SERVED = select(func.count()).where(_mine)

_at_it = (
    select(func.count())
    .where(
        _table.c.pair_id == _rows.c.pair_id,
        _table.c.purpose == "label",
        _table.c.state == "open",
    )
    .scalar_subquery()
)
_room = _rows.c.needed > _at_it
"""Condition on `round_pairs`: fewer people hold the pair than it needs answers."""
_IS_WANTED = select(_rows.c.pair_id).where(_rows.c.pair_id == bindparam("pair"), schema.WANTED)
"""In any round: labels belong to content."""
_HAS_ROOM = _IS_WANTED.where(_room)
_answered = exists().where(
    _table.c.pair_id == _rows.c.pair_id,
    _mine,
    _table.c.purpose == "label",
    _table.c.state == "done",
)
_NEXT_PAIR = (
    select(_rows.c.pair_id)
    .where(_rows.c.round == bindparam("round"), schema.WANTED, ~_answered, _room)
    # In index order, so the first row is found without scanning the others.
    .order_by(_rows.c.position)
    .limit(1)
)
_ROUNDS_OLDEST_FIRST = select(_rounds.c.round).order_by(_rounds.c.published_ms, _rounds.c.round)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeParams:
    """How pairs are handed out."""

    lease_ms: int = 600_000
    """Time for one pair, after which it goes to somebody else."""
    gold_rate: float = 0.1
    """Share of assignments that are gold items, as long as unanswered ones are left."""
    repeat_rate: float = 0.04
    """Share of assignments that repeat an answered pair with its sides swapped."""
    repeat_gap: int = 10
    """Fewest answers between a pair and its repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An assignment with its pair, as the server sees it."""

    assignment_id: str
    annotator_id: str
    purpose: str
    swap: bool
    round: str
    pair: Pair
    served_ms: int
    state: str
    revision: int
    """Revision of the newest label; 0: none yet."""


def next_task(connection: Connection, annotator_id: str, params: ServeParams) -> Task | None:
    """The pair that this person is to judge now; the same one until it is answered.

    Or until it needs no answer: an import may have settled it. None if nothing is left for them.
    """
    free_expired(connection)
    held = _task(connection.execute(_HELD, {"mine": annotator_id}).first())
    if held is not None and not is_open_to_answers(connection, held):
        connection.execute(_FREE, {"assignment": held.assignment_id})
        held = None
    if held is not None:
        lease = {"assignment": held.assignment_id, "until": steady_ms(connection) + params.lease_ms}
        connection.execute(_PROLONG, lease)
        return held
    regular = _find_pair(connection, annotator_id)
    if regular is None:
        return None
    choice = _find_check(connection, annotator_id, params) or (regular[1], "label", _coin())
    pair_id, purpose, swap = choice
    return _lease(connection, annotator_id, (regular[0], pair_id), purpose, swap, params)


def free_expired(connection: Connection) -> None:
    """Frees every assignment whose lease has expired."""
    for row in connection.execute(_FREE_EXPIRED, {"now": steady_ms(connection)}).all():
        record(
            connection,
            "expire",
            annotator_id=row.annotator_id,
            round_key=row.round,
            pair_id=row.pair_id,
            assignment_id=row.assignment_id,
        )


def has_room(connection: Connection, pair_id: str) -> bool:
    """Whether the pair needs more answers than have been given or are being worked on."""
    return connection.execute(_HAS_ROOM, {"pair": pair_id}).first() is not None


def is_open_to_answers(connection: Connection, task: Task) -> bool:
    """Whether its pair needs more answers than have been given; a check is always open."""
    where = {"pair": task.pair.pair_id}
    return task.purpose != "label" or connection.execute(_IS_WANTED, where).first() is not None


def find_task(connection: Connection, assignment_id: str) -> Task | None:
    """The assignment, in any state."""
    return _task(connection.execute(_BY_ID, {"assignment": assignment_id}).first())


def _task(row: Row[Any] | None) -> Task | None:
    if row is None:
        return None
    return Task(
        assignment_id=row.assignment_id,
        annotator_id=row.annotator_id,
        purpose=row.purpose,
        swap=bool(row.swap),
        round=row.round,
        pair=stored_pair(row, row.round),
        served_ms=row.served_ms,
        state=row.state,
        revision=row.revision,
    )


def _find_pair(connection: Connection, annotator_id: str) -> tuple[str, str] | None:
    """(round, pair) of the first pair that needs an answer from this person."""
    for key in connection.execute(_ROUNDS_OLDEST_FIRST).scalars().all():
        pair_id = connection.execute(_NEXT_PAIR, {"round": key, "mine": annotator_id}).scalar()
        if pair_id is not None:
            return key, pair_id
    return None


def _find_check(
    connection: Connection, annotator_id: str, params: ServeParams
) -> tuple[str, str, int] | None:
    """(pair, purpose, swap) of a gold item or a repeat, if one is due."""
    count = int(connection.execute(_SERVED, {"mine": annotator_id}).scalar_one())
    # Determined by person and count: a refresh or restart does not draw again.
    draw = _uniform(f"{annotator_id}/{count}")
    if draw < params.gold_rate:
        return _unanswered_gold(connection, annotator_id)
    if draw < params.gold_rate + params.repeat_rate:
        return _repeatable(connection, annotator_id, params.repeat_gap)
    return None


def _unanswered_gold(connection: Connection, annotator_id: str) -> tuple[str, str, int] | None:
    table, pairs = schema.assignments, schema.pairs
    seen = exists().where(
        table.c.pair_id == pairs.c.pair_id,
        table.c.annotator_id == annotator_id,
        table.c.state != "free",  # Nobody leaves a check out by waiting.
    )
    gold = select(pairs.c.pair_id).where(pairs.c.gold.is_not(None), ~seen)
    items = list(connection.execute(gold).scalars())
    if not items:
        return None
    first = min(items, key=lambda pair_id: _uniform(f"{annotator_id}/{pair_id}"))
    return first, "gold", _coin()


def _repeatable(connection: Connection, annotator_id: str, gap: int) -> tuple[str, str, int] | None:
    table = schema.assignments
    again = table.alias("again")
    repeated = exists().where(
        again.c.pair_id == table.c.pair_id,
        again.c.annotator_id == annotator_id,
        again.c.purpose == "repeat",
        again.c.state != "free",
    )
    rows = schema.round_pairs
    active = exists().where(rows.c.pair_id == table.c.pair_id, rows.c.active == 1)
    query = (
        select(table.c.pair_id, table.c.swap)
        .where(
            table.c.annotator_id == annotator_id,
            table.c.purpose == "label",
            table.c.state == "done",
        )
        .where(~repeated, active)
        .order_by(table.c.served_ms.desc())
        .offset(gap)
        .limit(1)
    )
    row = connection.execute(query).first()
    return None if row is None else (row.pair_id, "repeat", int(row.swap != 1))


def _lease(
    connection: Connection,
    annotator_id: str,
    key: tuple[str, str],
    purpose: str,
    swap: int,
    params: ServeParams,
) -> Task:
    round_key, pair_id = key
    at = steady_ms(connection)
    until = at + params.lease_ms
    # The table has one row per person, pair and purpose: a free one is reopened.
    this = {"pair": pair_id, "mine": annotator_id, "why": purpose}
    lease = {"round_key": round_key, "until": until, "at": at}
    again = connection.execute(_TAKE_UP_AGAIN, this | lease).scalar()
    if again is None:
        again = secrets.token_hex(16)
        row: dict[str, Any] = {"assignment_id": again, "pair_id": pair_id}
        row |= {"annotator_id": annotator_id, "purpose": purpose, "swap": swap, "revision": 0}
        row |= {"round": round_key, "state": "open", "lease_until_ms": until, "served_ms": at}
        connection.execute(_INSERT, [row])
    task = find_task(connection, again)
    assert task is not None
    record(
        connection,
        "serve",
        annotator_id=annotator_id,
        round_key=round_key,
        pair_id=pair_id,
        assignment_id=again,
        purpose=purpose,
        swap=task.swap,
    )
    return task


def _coin() -> int:
    return secrets.randbelow(2)


def _uniform(text: str) -> float:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
