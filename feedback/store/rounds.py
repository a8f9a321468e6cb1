"""Rounds of pairs in the store: publishing, settling and progress."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, or_, select, update

from feedback.judgments import Pair
from feedback.store import schema
from feedback.store.database import now_ms
from feedback.store.events import record
from feedback.store.standing import (
    answers,
    chunks,
    column_in,
    content_of,
    pairs_of,
    standing_labels,
)
from feedback.store.votes import votes_needed
from preferences.records import JudgmentError

# Built once, as in `feedback.store.assignments`.
_rows = schema.round_pairs
_NEEDS = (
    select(_rows.c.round, _rows.c.pair_id, _rows.c.needed, schema.rounds.c.overlap)
    .join(schema.rounds, schema.rounds.c.round == _rows.c.round)
    .where(_rows.c.pair_id.in_(bindparam("pairs", expanding=True)))
)
_NEED = (
    update(_rows)
    .where(_rows.c.round == bindparam("round_key"), _rows.c.pair_id == bindparam("pair"))
    .values(needed=bindparam("need"))
)
_people = schema.annotators
_ACTIVE_PEOPLE = select(_people.c.annotator_id).where(
    _people.c.paused_reason.is_(None),
    _people.c.role == "annotator",
    or_(_people.c.token_expires_ms.is_(None), _people.c.token_expires_ms > bindparam("now")),
)
_answers_of_pair = (
    select(func.count())
    .where(
        schema.assignments.c.pair_id == _rows.c.pair_id,
        schema.assignments.c.purpose == "label",
        schema.assignments.c.state == "done",
    )
    .scalar_subquery()
)
_WAIT_FOR_ONE_MORE = (
    select(_rows.c.pair_id)
    .join(schema.rounds, schema.rounds.c.round == _rows.c.round)
    .where(schema.WANTED, _answers_of_pair >= schema.rounds.c.overlap)
    .distinct()
)
MOST_OVERLAP = 20
"""The most people who may be asked to judge each pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a round."""

    round: str
    pairs: int
    settled: int
    """Pairs that need no further answer."""
    judgments: int
    missing: int
    """Answers still needed, third votes included."""

    @property
    def wanted(self) -> int:
        """Answers that the round needs in total, as far as known."""
        return self.judgments + self.missing

    @property
    def complete(self) -> bool:
        """Whether every pair is settled."""
        return self.settled == self.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What publishing changed."""

    added: int
    kept: int
    removed: int


def publish(
    connection: Connection, pairs: Sequence[Pair], *, overlap: int | None, by: str | None = None
) -> Published:
    """Makes `pairs` the content of their round; publishing the same pairs again changes nothing.

    `overlap` people judge each pair; None: as many as before, one in a new round. The log says
    that it was done `by` this user or lead; by default it was the pipeline.

    Pairs that the round no longer contains are closed; pairs that it already contains, or that
    were judged in another round, keep their judgments.

    Raises:
        ValueError: no pairs, or pairs of several rounds.
    """
    keys = {pair.round for pair in pairs}
    if len(keys) != 1:
        raise ValueError(f"expected the pairs of one round, found {sorted(keys)}")
    (key,) = keys
    overlap, renewed = _upsert_round(connection, key, overlap)
    add_pairs(connection, pairs)
    rows = schema.round_pairs
    held = connection.execute(select(rows.c.pair_id, rows.c.active).where(rows.c.round == key))
    before = {row.pair_id: row.active for row in held}
    wanted = {pair.pair_id for pair in pairs}
    fresh = sorted(wanted - set(before))
    if fresh:
        connection.execute(rows.insert(), [_round_row(key, pair_id, overlap) for pair_id in fresh])
    gone = [pair_id for pair_id, active in before.items() if active and pair_id not in wanted]
    back = [pair_id for pair_id, active in before.items() if not active and pair_id in wanted]
    _set_active(connection, key, back, 1)
    _set_active(connection, key, gone, 0)
    _free_leases(connection, gone)
    # Leave the others alone: with a new annotator, settling would reopen finished pairs.
    settle(connection, sorted(wanted) if renewed else sorted({*fresh, *back}))
    settle_without(connection)
    result = Published(
        added=len(fresh) + len(back), kept=len(wanted) - len(fresh) - len(back), removed=len(gone)
    )
    if result.added or result.removed:
        _to_be_announced(connection, key)
    if result.added or result.removed or renewed:
        detail: dict[str, Any] = {"added": result.added, "removed": result.removed}
        detail |= {"overlap": overlap} if renewed else {}
        record(connection, "publish", round_key=key, **detail, **({"by": by} if by else {}))
    return result


def refuse_unpublishable(path: Path, pairs: Sequence[Pair], round_key: str) -> None:
    """Keeps a file of one round out of another, and texts that no export can hold out of both.

    Raises:
        JudgmentError: a pair is of another round, or one of its texts contains U+0000.
    """
    for pair in pairs:
        if pair.round != round_key:
            raise JudgmentError(
                f"{path}: pair {pair.pair_id} is of round {pair.round!r}, expected {round_key!r}"
            )
        for name in ("prompt", "response_a", "response_b"):
            if _has_nul(getattr(pair, name)):
                raise JudgmentError(
                    f"{path}: pair {pair.pair_id}: {name} contains U+0000, expected a text without"
                )


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, Mapping):
        return any(_has_nul(one) for item in value.items() for one in item)
    return isinstance(value, Sequence) and any(map(_has_nul, value))


def add_pairs(
    connection: Connection, pairs: Iterable[Pair], gold: dict[str, str] | None = None
) -> None:
    """Stores new pairs; `gold` maps pair ids to right choices.

    Of known ones it keeps the order of the responses, which gives judgments their meaning, and
    takes over whether they are finished: the same text may have been cut in one round and not in
    another, and people are shown what holds for the newest.
    """
    by_id = {pair.pair_id: pair for pair in pairs}
    known = set(column_in(connection, schema.pairs.c.pair_id, list(by_id)))
    _renew_flags(connection, [by_id[key] for key in sorted(known)])
    rows = [
        {
            "pair_id": pair.pair_id,
            "content": content_of(pair),
            "gold": (gold or {}).get(pair.pair_id),
            "created_ms": now_ms(),
        }
        for pair in by_id.values()
        if pair.pair_id not in known
    ]
    if rows:
        connection.execute(schema.pairs.insert(), rows)


def _renew_flags(connection: Connection, pairs: Sequence[Pair]) -> None:
    ids = [pair.pair_id for pair in pairs]
    for pair, stored in zip(pairs, pairs_of(connection, ids, ""), strict=True):
        flags = (pair.finished_a, pair.finished_b)
        if pair.response_a != stored.response_a:
            flags = flags[::-1]
        if flags != (stored.finished_a, stored.finished_b):
            content = content_of(replace(stored, finished_a=flags[0], finished_b=flags[1]))
            this = schema.pairs.c.pair_id == pair.pair_id
            connection.execute(update(schema.pairs).where(this).values(content=content))


def settle(connection: Connection, pair_ids: Sequence[str]) -> None:
    """Updates `needed` of these pairs in all rounds that contain them."""
    active = active_people(connection)
    found: dict[str, dict[str, str]] = {pair_id: {} for pair_id in pair_ids}
    for label in standing_labels(connection, pair_ids):
        found[label.pair_id][label.annotator_id] = label.choice
    for chunk in chunks(pair_ids):
        for row in connection.execute(_NEEDS, {"pairs": list(chunk)}).all():
            given = found[row.pair_id]
            people = len(active | given.keys())
            need = votes_needed([*given.values()], overlap=row.overlap, people=people)
            if need == row.needed:
                continue
            this = {"round_key": row.round, "pair": row.pair_id, "need": need}
            connection.execute(_NEED, this)
            if not row.needed:
                _to_be_announced(connection, row.round)


def settle_without(connection: Connection) -> None:
    """Settles pairs that need a third vote which, after a departure, nobody is left to give."""
    settle(connection, list(connection.execute(_WAIT_FOR_ONE_MORE).scalars()))


def active_people(connection: Connection) -> set[str]:
    """Who may give a third vote: annotators with a valid token who are not paused; no leads."""
    return set(connection.execute(_ACTIVE_PEOPLE, {"now": now_ms()}).scalars())


def progress(connection: Connection) -> list[Progress]:
    """Progress of all rounds, in the order of publication."""
    rounds = schema.rounds
    query = select(rounds.c.round).order_by(rounds.c.published_ms, rounds.c.round)
    return [_progress(connection, key) for key in connection.execute(query).scalars().all()]


def _progress(connection: Connection, key: str) -> Progress:
    rows = schema.round_pairs
    query = select(rows.c.pair_id, rows.c.needed).where(rows.c.round == key, rows.c.active == 1)
    needed = {row.pair_id: row.needed for row in connection.execute(query)}
    return Progress(
        round=key,
        pairs=len(needed),
        settled=list(needed.values()).count(0),
        judgments=sum(map(len, answers(connection, list(needed)).values())),
        missing=sum(needed.values()),
    )


def round_pair_ids(connection: Connection, key: str) -> list[str]:
    """The pairs that the round currently contains, in the order in which they are served."""
    rows = schema.round_pairs
    query = select(rows.c.pair_id).where(rows.c.round == key, rows.c.active == 1)
    return list(connection.execute(query.order_by(rows.c.position)).scalars())


def _to_be_announced(connection: Connection, key: str) -> None:
    """Marks the round as open, so that it is announced (again) when complete."""
    touched = update(schema.rounds).where(schema.rounds.c.round == key)
    connection.execute(touched.values(notified_ms=None))


def _upsert_round(connection: Connection, key: str, overlap: int | None) -> tuple[int, bool]:
    """Creates the round or changes its overlap; returns the overlap, and whether it changed."""
    rounds = schema.rounds
    held = connection.execute(select(rounds.c.overlap).where(rounds.c.round == key)).scalar()
    overlap = overlap or held or 1
    if held is None:
        row = {"round": key, "overlap": overlap, "published_ms": now_ms(), "notified_ms": None}
        connection.execute(rounds.insert(), [row])
    elif held != overlap:
        connection.execute(update(rounds).where(rounds.c.round == key).values(overlap=overlap))
    return overlap, held not in (None, overlap)


def _round_row(key: str, pair_id: str, overlap: int) -> dict[str, Any]:
    digest = hashlib.sha256(f"{key}/{pair_id}".encode()).digest()
    position = int.from_bytes(digest[:6], "big")
    return {"round": key, "pair_id": pair_id, "position": position, "active": 1, "needed": overlap}


def _set_active(connection: Connection, key: str, pair_ids: Sequence[str], active: int) -> None:
    rows = schema.round_pairs
    for chunk in chunks(pair_ids):
        where = (rows.c.round == key, rows.c.pair_id.in_(chunk))
        connection.execute(update(rows).where(*where).values(active=active))


def _free_leases(connection: Connection, pair_ids: Sequence[str]) -> None:
    """Frees open assignments of pairs that no round contains any more."""
    table, rows = schema.assignments, schema.round_pairs
    contained = exists().where(rows.c.pair_id == table.c.pair_id, rows.c.active == 1)
    for chunk in chunks(pair_ids):
        where = (table.c.pair_id.in_(chunk), table.c.state == "open", ~contained)
        connection.execute(update(table).where(*where).values(state="free"))
