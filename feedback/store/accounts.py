"""Who may label: annotators, their tokens and their browser sessions.

Tokens and session ids are 256 random bits of which only the sha256 is stored, so a reader of the
database cannot sign in. (Slow hashes are for guessable passwords, which these are not.) CSRF tokens
follow from session ids and are not stored.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from feedback.store import schema
from feedback.store.database import now_ms
from feedback.store.events import record
from feedback.store.names import check_name
from feedback.store.rounds import settle_without
from preferences.records import composed, spellings

RIGHTS = ("export", "pause", "publish")
"""What a lead may do, unless a token gives them less."""
TOKEN_DAYS = 90
"""How long a token lasts that the commands make, unless they are told."""
SESSION_MS = 30 * 24 * 3600 * 1000
"""A browser stays signed in for thirty days, and no longer than its token lasts."""

MOST_DAYS = 3650
"""The longest life of a token that expires."""
_DAY_MS = 24 * 3600 * 1000

# Built once, as in `feedback.store.assignments`.
_BY_TOKEN = select(schema.annotators).where(schema.annotators.c.token_hash == bindparam("hash"))
_BY_NAME = select(schema.annotators).where(
    schema.annotators.c.annotator_id == bindparam("mine"),
    schema.annotators.c.role.in_(("annotator", "lead")),
)
_SPELLED = select(schema.annotators.c.annotator_id).where(
    schema.annotators.c.annotator_id.in_(bindparam("spellings", expanding=True))
)
_PAUSED = select(schema.annotators.c.paused_reason).where(
    schema.annotators.c.annotator_id == bindparam("mine")
)
_TOKEN_ENDED = select(schema.annotators.c.annotator_id).where(
    schema.annotators.c.token_expires_ms > bindparam("after"),
    schema.annotators.c.token_expires_ms <= bindparam("by"),
)
_BY_SESSION = (
    select(schema.annotators)
    .join(schema.sessions, schema.sessions.c.annotator_id == schema.annotators.c.annotator_id)
    .where(
        schema.sessions.c.session_hash == bindparam("hash"),
        schema.sessions.c.expires_ms > bindparam("now"),
    )
)


class ExpiredTokenError(Exception):
    """The token was right, until the date in the message."""


class UnknownAnnotatorError(ValueError):
    """There is no annotator of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who is signed in."""

    annotator_id: str
    role: str
    """annotator or lead."""
    rights: frozenset[str]
    """Those of `RIGHTS` that they have; none for annotators."""
    csrf: str | None
    """What a browser must send with each change; None for bearer tokens, which other sites cannot
    send."""


def known_as(connection: Connection, name: str) -> str:
    """This name as the store spells it; in composed form (NFC) if the store does not have it."""
    same = spellings(name)
    if "\x00" in name:  # PostgreSQL cannot even look for it.
        return name
    known = set(connection.execute(_SPELLED, {"spellings": same}).scalars())
    return next((spelling for spelling in same if spelling in known), composed(name))


def new_token(
    connection: Connection,
    annotator_id: str,
    *,
    role: str | None = None,
    days: float | None = None,
    rights: Collection[str] = RIGHTS,
    by: str | None = None,
) -> str:
    """Creates the annotator if needed, and a token that replaces the previous one.

    It lasts so many `days`, or for ever. Without a `role` a lead keeps theirs and the rights, and
    everybody else is an annotator; who is made a lead gets these `rights`. The log says `by` whom.

    Raises:
        ValueError: the name is none that everybody can see (`feedback.store.names`) or that of a
            source of imported judgments, or a right or the number of days is none.
    """
    annotator_id = known_as(connection, annotator_id)
    check_name(annotator_id)
    for right in rights:
        if right not in RIGHTS:
            raise ValueError(f"right {right!r}, expected some of {', '.join(RIGHTS)}")
    if days is not None and not 0 < days <= MOST_DAYS:
        raise ValueError(f"a token of {days} days, expected more than 0 and at most {MOST_DAYS}")
    token = secrets.token_urlsafe(32)
    people = schema.annotators
    mine = people.c.annotator_id == annotator_id
    held = connection.execute(select(people.c.kind, people.c.role).where(mine)).first()
    kind, stays = (held.kind, held.role == "lead" and role is None) if held else (None, False)
    if kind not in (None, "human"):
        raise ValueError(
            f"{annotator_id} is known as a source of kind {kind}, expected a person: "
            "give this person another name"
        )
    values: dict[str, Any] = {"token_hash": _hash(token)}
    values["token_expires_ms"] = None if days is None else now_ms() + round(days * _DAY_MS)
    if not stays:
        values["role"] = role or "annotator"
        values["rights"] = ",".join(sorted(rights)) if role == "lead" else None
    if kind is None:
        row = {"annotator_id": annotator_id, "created_ms": now_ms(), "judged_from_label": 0}
        row |= {"kind": "human"}
        connection.execute(insert(people).values(**row, **values))
    else:
        connection.execute(update(people).where(mine).values(**values))
        mine_too = schema.sessions.c.annotator_id == annotator_id
        connection.execute(delete(schema.sessions).where(mine_too))
        settle_without(connection)
    detail: dict[str, Any] = {name: values.get(name) for name in ("role", "rights")}
    detail |= {"days": days, "by": by}
    known = {name: value for name, value in detail.items() if value is not None}
    record(connection, "token", annotator_id=annotator_id, **known)
    return token


def by_token(connection: Connection, token: str) -> Person | None:
    """The annotator who has this token.

    Raises:
        ExpiredTokenError: somebody had it, until it expired.
    """
    row = connection.execute(_BY_TOKEN, {"hash": _hash(token)}).first()
    if row is None:
        return None
    _refuse_expired(row)
    return _person(row, csrf=None)


def by_name(connection: Connection, annotator_id: str, csrf: str) -> Person | None:
    """The annotator of this name, if they may sign in at all; imported ones may not.

    Raises:
        ExpiredTokenError: they might, until their token expired.
    """
    if "\x00" in annotator_id:  # PostgreSQL cannot even look for it.
        return None
    mine = {"mine": known_as(connection, annotator_id)}
    row = connection.execute(_BY_NAME, mine).first()
    if row is None:
        return None
    _refuse_expired(row)
    return _person(row, csrf=csrf)


def open_session(connection: Connection, annotator_id: str) -> str:
    """Signs a browser in; returns the secret for its cookie."""
    session = secrets.token_urlsafe(32)
    connection.execute(delete(schema.sessions).where(schema.sessions.c.expires_ms < now_ms()))
    people = schema.annotators
    until = select(people.c.token_expires_ms).where(people.c.annotator_id == annotator_id)
    token_ends = connection.execute(until).scalar()
    ends = now_ms() + SESSION_MS
    connection.execute(
        insert(schema.sessions).values(
            session_hash=_hash(session),
            annotator_id=annotator_id,
            expires_ms=ends if token_ends is None else min(ends, token_ends),
        )
    )
    return session


def by_session(connection: Connection, session: str) -> Person | None:
    """The annotator whose browser has this cookie."""
    row = connection.execute(_BY_SESSION, {"hash": _hash(session), "now": now_ms()}).first()
    if row is None:
        return None
    return _person(row, csrf=_csrf(session))


def close_session(connection: Connection, session: str) -> None:
    """Signs a browser out."""
    connection.execute(
        delete(schema.sessions).where(schema.sessions.c.session_hash == _hash(session))
    )


def paused_reason(connection: Connection, annotator_id: str) -> str | None:
    """Why this person is paused at this moment; None if they are not."""
    reason: str | None = connection.execute(_PAUSED, {"mine": annotator_id}).scalar()
    return reason


def pause(connection: Connection, annotator_id: str, reason: str, *, by: str | None = None) -> None:
    """Gives this person no further pairs and frees their open one.

    Raises:
        UnknownAnnotatorError: there is no such annotator.
    """
    annotator_id = known_as(connection, annotator_id)
    _set_paused(connection, annotator_id, paused_reason=reason)
    table = schema.assignments
    mine = (table.c.annotator_id == annotator_id, table.c.state == "open")
    connection.execute(update(table).where(*mine).values(state="free"))
    settle_without(connection)
    by_whom = {"by": by} if by else {}
    record(connection, "pause", annotator_id=annotator_id, reason=reason, **by_whom)


def resume(connection: Connection, annotator_id: str, *, by: str | None = None) -> None:
    """Lets this person continue; quality checks count only their answers from now on.

    Raises:
        UnknownAnnotatorError: there is no such annotator.
    """
    annotator_id = known_as(connection, annotator_id)
    labels = schema.labels
    newest = select(labels.c.label_id).order_by(labels.c.label_id.desc()).limit(1)
    last = connection.execute(newest).scalar() or 0
    _set_paused(connection, annotator_id, paused_reason=None, judged_from_label=last)
    record(connection, "resume", annotator_id=annotator_id, **({"by": by} if by else {}))


def token_ended(connection: Connection, *, after_ms: int, by_ms: int) -> bool:
    """Whether somebody's token has expired later than `after_ms`, up to `by_ms`."""
    between = {"after": after_ms, "by": by_ms}
    return connection.execute(_TOKEN_ENDED, between).first() is not None


def _set_paused(connection: Connection, annotator_id: str, **values: Any) -> None:
    people = schema.annotators
    where = people.c.annotator_id == annotator_id
    known = select(people.c.annotator_id).where(where)
    # PostgreSQL cannot even look for a text with U+0000.
    if "\x00" in annotator_id or connection.execute(known).first() is None:
        raise UnknownAnnotatorError(f"no annotator {annotator_id!r}")
    connection.execute(update(people).where(where).values(**values))


def _refuse_expired(row: Row[Any]) -> None:
    until = row.token_expires_ms
    if until is not None and until <= now_ms():
        raise ExpiredTokenError(f"{datetime.fromtimestamp(until / 1000, tz=UTC):%Y-%m-%d}")


def _person(row: Row[Any], *, csrf: str | None) -> Person:
    rights: frozenset[str] = frozenset()
    if row.role == "lead":
        rights = frozenset(RIGHTS if row.rights is None else filter(None, row.rights.split(",")))
    return Person(annotator_id=row.annotator_id, role=row.role, rights=rights, csrf=csrf)


def _csrf(session: str) -> str:
    """What a session's page sends with each change: only who has the cookie can work it out."""
    return hmac.new(session.encode("utf-8"), b"csrf", hashlib.sha256).hexdigest()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8")).hexdigest()
