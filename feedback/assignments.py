"""Who gets which pair, and what becomes of the answer.

All functions run inside one writing transaction, so each sees every earlier decision. An
assignment is `open` under a lease, `done` when answered, or `free` when the lease ran out or it was
given back; the pair of a free one may go to somebody else, or to the same person again.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, func, select, update

from feedback import schema
from feedback.database import now_ms
from feedback.events import record
from feedback.judgments import Pair
from feedback.standing import stored_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeParams:
    """How pairs are handed out."""

    lease_ms: int = 600_000
    """Time for one pair; after it the pair goes to somebody else."""
    gold_rate: float = 0.1
    """Share of servings that are gold items, while there are unseen ones."""
    repeat_rate: float = 0.04
    """Share of servings that repeat a pair the person has answered, with sides exchanged."""
    repeat_gap: int = 10
    """Answers between a pair and its repeat, at least."""


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


def next_task(connection: Connection, annotator_id: str, params: ServeParams) -> Task | None:
    """The pair that this person is to judge now; the same one again until it is answered.

    None when nothing is left for them.
    """
    free_expired(connection)
    mine = schema.assignments.c.annotator_id == annotator_id
    held = _task(connection, mine, schema.assignments.c.state == "open")
    if held is not None:
        lease = now_ms() + params.lease_ms
        _change(connection, held.assignment_id, lease_until_ms=lease)
        return held
    regular = _find_pair(connection, annotator_id)
    if regular is None:
        return None
    choice = _find_check(connection, annotator_id, params) or (regular[1], "label", _coin())
    pair_id, purpose, swap = choice
    return _lease(connection, annotator_id, (regular[0], pair_id), purpose, swap, params)


def free_expired(connection: Connection) -> None:
    """Frees every assignment whose lease has run out."""
    table = schema.assignments
    expired = connection.execute(
        update(table)
        .where(table.c.state == "open", table.c.lease_until_ms < now_ms())
        .values(state="free")
        .returning(table.c.assignment_id, table.c.annotator_id, table.c.round, table.c.pair_id)
    ).all()
    for row in expired:
        record(
            connection,
            "expire",
            annotator_id=row.annotator_id,
            round_key=row.round,
            pair_id=row.pair_id,
            assignment_id=row.assignment_id,
        )


def has_room(connection: Connection, pair_id: str, round_key: str) -> bool:
    """Whether the pair wants an answer beyond those given and those somebody works on."""
    rows = schema.round_pairs
    query = select(rows.c.pair_id).where(rows.c.round == round_key, rows.c.pair_id == pair_id)
    return connection.execute(query.where(schema.WANTED, _room())).first() is not None


def _room() -> ColumnElement[bool]:
    """Of a row of `round_pairs`: fewer people are at the pair than it wants answers."""
    rows, table = schema.round_pairs, schema.assignments
    at_it = (
        select(func.count())
        .where(
            table.c.pair_id == rows.c.pair_id,
            table.c.purpose == "label",
            table.c.state == "open",
        )
        .scalar_subquery()
    )
    return rows.c.needed > at_it


def find_task(connection: Connection, assignment_id: str) -> Task | None:
    """The assignment, in whatever state it is."""
    return _task(connection, schema.assignments.c.assignment_id == assignment_id)


def _task(connection: Connection, *where: Any) -> Task | None:
    table = schema.assignments
    query = select(table, schema.pairs.c.content).join(
        schema.pairs, schema.pairs.c.pair_id == table.c.pair_id
    )
    row = connection.execute(query.where(*where).order_by(table.c.served_ms)).first()
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
    )


def _find_pair(connection: Connection, annotator_id: str) -> tuple[str, str] | None:
    """(round, pair) of the first pair with room that this person has not answered yet."""
    rounds, rows, table = schema.rounds, schema.round_pairs, schema.assignments
    answered = exists().where(
        table.c.pair_id == rows.c.pair_id,
        table.c.annotator_id == annotator_id,
        table.c.purpose == "label",
        table.c.state == "done",
    )
    oldest_first = select(rounds.c.round).order_by(rounds.c.published_ms, rounds.c.round)
    for key in connection.execute(oldest_first).scalars().all():
        # In the order of an index: the first row comes without a look at the others.
        query = select(rows.c.pair_id).where(rows.c.round == key, schema.WANTED, ~answered, _room())
        pair_id = connection.execute(query.order_by(rows.c.position).limit(1)).scalar()
        if pair_id is not None:
            return key, pair_id
    return None


def _find_check(
    connection: Connection, annotator_id: str, params: ServeParams
) -> tuple[str, str, int] | None:
    """(pair, purpose, swap) of a gold item or a repeat, when it is time for one."""
    table = schema.assignments
    served = select(func.count()).where(table.c.annotator_id == annotator_id)
    count = int(connection.execute(served).scalar_one())
    # A function of person and count: a refresh or a restart does not draw again.
    draw = _uniform(f"{annotator_id}/{count}")
    if draw < params.gold_rate:
        return _unseen_gold(connection, annotator_id)
    if draw < params.gold_rate + params.repeat_rate:
        return _repeatable(connection, annotator_id, params.repeat_gap)
    return None


def _unseen_gold(connection: Connection, annotator_id: str) -> tuple[str, str, int] | None:
    table, pairs = schema.assignments, schema.pairs
    seen = exists().where(
        table.c.pair_id == pairs.c.pair_id,
        table.c.annotator_id == annotator_id,
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
    return None if row is None else (row.pair_id, "repeat", 1 - row.swap)


def _lease(
    connection: Connection,
    annotator_id: str,
    key: tuple[str, str],
    purpose: str,
    swap: int,
    params: ServeParams,
) -> Task:
    table = schema.assignments
    round_key, pair_id = key
    at = now_ms()
    values = {"round": round_key, "state": "open", "lease_until_ms": at + params.lease_ms}
    # One row per person, pair and purpose, says the table: a free one is taken up again.
    again = connection.execute(
        update(table)
        .where(table.c.pair_id == pair_id, table.c.annotator_id == annotator_id)
        .where(table.c.purpose == purpose, table.c.state == "free")
        .values(served_ms=at, **values)
        .returning(table.c.assignment_id)
    ).scalar()
    if again is None:
        again = secrets.token_hex(16)
        row = {"assignment_id": again, "pair_id": pair_id, "annotator_id": annotator_id}
        row |= {"purpose": purpose}
        values |= {"swap": swap, "revision": 0, "served_ms": at}
        connection.execute(table.insert(), [row | values])
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


def _change(connection: Connection, assignment_id: str, **values: Any) -> None:
    table = schema.assignments
    where = table.c.assignment_id == assignment_id
    connection.execute(update(table).where(where).values(**values))


def _coin() -> int:
    return secrets.randbelow(2)


def _uniform(text: str) -> float:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
