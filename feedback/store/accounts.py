"""Who may label: annotators, their tokens and their browser sessions.

Tokens and session ids are 256 random bits of which only the sha256 is stored, so a reader of the
database cannot sign in. (Slow hashes are for guessable passwords, which these are not.) CSRF tokens
follow from session ids and are not stored.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from feedback.store import schema
from feedback.store.database import now_ms
from feedback.store.events import record
from feedback.store.names import check_name
from feedback.store.rounds import settle_without

SESSION_MS = 30 * 24 * 3600 * 1000
"""A browser stays signed in for thirty days."""

# Built once, as in `feedback.store.assignments`.
_BY_TOKEN = select(schema.annotators).where(schema.annotators.c.token_hash == bindparam("hash"))
_PAUSED = select(schema.annotators.c.paused_reason).where(
    schema.annotators.c.annotator_id == bindparam("mine")
)
_BY_SESSION = (
    select(schema.annotators)
    .join(schema.sessions, schema.sessions.c.annotator_id == schema.annotators.c.annotator_id)
    .where(
        schema.sessions.c.session_hash == bindparam("hash"),
        schema.sessions.c.expires_ms > bindparam("now"),
    )
)


class UnknownAnnotatorError(ValueError):
    """There is no annotator of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who is signed in."""

    annotator_id: str
    role: str
    """annotator or lead."""
    csrf: str | None
    """What a browser must send with each change; None for bearer tokens, which other sites cannot
    send."""


def new_token(connection: Connection, annotator_id: str, *, role: str = "annotator") -> str:
    """Creates the annotator if needed, and a token that replaces the previous one.

    Raises:
        ValueError: the name is none that everybody can see (`feedback.store.names`).
    """
    check_name(annotator_id)
    token = secrets.token_urlsafe(32)
    people = schema.annotators
    mine = people.c.annotator_id == annotator_id
    held = connection.execute(select(people.c.annotator_id).where(mine)).first()
    values = {"role": role, "token_hash": _hash(token)}
    if held is None:
        row = {"annotator_id": annotator_id, "created_ms": now_ms(), "judged_from_label": 0}
        row |= {"kind": "human"}
        connection.execute(insert(people).values(**row, **values))
    else:
        connection.execute(update(people).where(mine).values(**values))
        mine_too = schema.sessions.c.annotator_id == annotator_id
        connection.execute(delete(schema.sessions).where(mine_too))
    record(connection, "token", annotator_id=annotator_id, role=role)
    return token


def by_token(connection: Connection, token: str) -> Person | None:
    """The annotator who has this token."""
    row = connection.execute(_BY_TOKEN, {"hash": _hash(token)}).first()
    if row is None:
        return None
    return Person(annotator_id=row.annotator_id, role=row.role, csrf=None)


def open_session(connection: Connection, annotator_id: str) -> str:
    """Signs a browser in; returns the secret for its cookie."""
    session = secrets.token_urlsafe(32)
    connection.execute(delete(schema.sessions).where(schema.sessions.c.expires_ms < now_ms()))
    connection.execute(
        insert(schema.sessions).values(
            session_hash=_hash(session),
            annotator_id=annotator_id,
            expires_ms=now_ms() + SESSION_MS,
        )
    )
    return session


def by_session(connection: Connection, session: str) -> Person | None:
    """The annotator whose browser has this cookie."""
    row = connection.execute(_BY_SESSION, {"hash": _hash(session), "now": now_ms()}).first()
    if row is None:
        return None
    return Person(annotator_id=row.annotator_id, role=row.role, csrf=_csrf(session))


def close_session(connection: Connection, session: str) -> None:
    """Signs a browser out."""
    connection.execute(
        delete(schema.sessions).where(schema.sessions.c.session_hash == _hash(session))
    )


def paused_reason(connection: Connection, annotator_id: str) -> str | None:
    """Why this person is paused at this moment; None if they are not."""
    reason: str | None = connection.execute(_PAUSED, {"mine": annotator_id}).scalar()
    return reason


def pause(connection: Connection, annotator_id: str, reason: str) -> None:
    """Gives this person no further pairs and frees their open one.

    Raises:
        UnknownAnnotatorError: there is no such annotator.
    """
    _set_paused(connection, annotator_id, paused_reason=reason)
    table = schema.assignments
    mine = (table.c.annotator_id == annotator_id, table.c.state == "open")
    connection.execute(update(table).where(*mine).values(state="free"))
    settle_without(connection)
    record(connection, "pause", annotator_id=annotator_id, reason=reason)


def resume(connection: Connection, annotator_id: str) -> None:
    """Lets this person continue; quality checks count only their answers from now on.

    Raises:
        UnknownAnnotatorError: there is no such annotator.
    """
    labels = schema.labels
    newest = select(labels.c.label_id).order_by(labels.c.label_id.desc()).limit(1)
    last = connection.execute(newest).scalar() or 0
    _set_paused(connection, annotator_id, paused_reason=None, judged_from_label=last)
    record(connection, "resume", annotator_id=annotator_id)


def _set_paused(connection: Connection, annotator_id: str, **values: Any) -> None:
    people = schema.annotators
    where = people.c.annotator_id == annotator_id
    known = select(people.c.annotator_id).where(where)
    # PostgreSQL cannot even look for a text with U+0000.
    if "\x00" in annotator_id or connection.execute(known).first() is None:
        raise UnknownAnnotatorError(f"no annotator {annotator_id!r}")
    connection.execute(update(people).where(where).values(**values))


def _csrf(session: str) -> str:
    """What a session's page sends with each change: only who has the cookie can work it out."""
    return hmac.new(session.encode("utf-8"), b"csrf", hashlib.sha256).hexdigest()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8")).hexdigest()
