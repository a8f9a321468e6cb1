"""Notifies Prefect that a round is complete, by an event that a deployment's trigger expects.

Plain HTTP to Prefect's `POST /api/events`: this package depends on nothing else of Prefect. An
event is resent until Prefect has accepted it, even after a restart of the server; only then is the
round marked as announced.
"""

import base64
import fcntl
import http.client
import json
import os
import urllib.error
import urllib.request
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select, update

from feedback.endpoint import opener_for
from feedback.store import schema
from feedback.store.database import Database, now_ms
from feedback.store.events import record

EVENT = "rlhf.feedback.round-complete"
"""For `expect` of a deployment trigger; the event's resource is `rlhf.feedback.<round>`."""
_TIMEOUT_S = 10
_REOPENING = ("undo", "publish", "forget")
"""Events of the store after which a round may be incomplete that was complete."""


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME", ".work/prefect"))


def local_prefect() -> str | None:
    """API of the Prefect server that `make ui` runs for this folder; None if none is running.

    The server locks a file in its home whose first line is its address.
    """
    path = _home() / "server.lock"
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"{lock.readline().strip()}/api"
    return None


def authorization(url: str) -> dict[str, str]:
    """The header that lets us in to the API at `url`; none where no password is known.

    The server of this folder keeps its password in a file beside its lock, for nobody else; that
    of another server stands in `PREFECT_API_AUTH_STRING`.
    """
    password = os.environ.get("PREFECT_API_AUTH_STRING", "")
    if url.rstrip("/") == local_prefect():
        password = (_home() / "auth").read_text(encoding="utf-8").strip()
    if not password:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"}


def unannounced(connection: Connection) -> list[str]:
    """Complete rounds that have not been announced."""
    rounds, rows = schema.rounds, schema.round_pairs
    query = (
        select(rounds.c.round)
        .join(rows, rows.c.round == rounds.c.round)
        .where(rounds.c.notified_ms.is_(None), rows.c.active == 1)
        .group_by(rounds.c.round)
        .having(func.max(rows.c.needed) == 0)
        .order_by(rounds.c.round)
    )
    return list(connection.execute(query).scalars())


def announce(database: Database, prefect_url: str, page_url: str) -> list[str]:
    """Sends an event for every complete, unannounced round; returns these rounds.

    What was reopened while Prefect was being told stays unannounced: it may be complete again, and
    whoever Prefect has started may have looked in between.

    Raises:
        OSError: Prefect cannot be reached or refuses; unsent events are retried next time.
        ValueError: `prefect_url` is no address.
    """
    with database.reading() as connection:
        keys = unannounced(connection)
        seen = _newest_reopening(connection) if keys else None
    for key in keys:
        _post(prefect_url.rstrip("/"), "/events", [event_of(key, page_url)])
        with database.writing() as connection:
            record(connection, "announce", round_key=key)
            if _newest_reopening(connection) == seen:
                announced = update(schema.rounds).where(schema.rounds.c.round == key)
                connection.execute(announced.values(notified_ms=now_ms()))
    return keys


def _newest_reopening(connection: Connection) -> int | None:
    """The newest event after which a complete round may need answers again."""
    events = schema.events
    newest = select(func.max(events.c.event_id)).where(events.c.kind.in_(_REOPENING))
    found: int | None = connection.execute(newest).scalar()
    return found


def event_of(key: str, page_url: str) -> dict[str, Any]:
    """The event in the form of Prefect's API."""
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(tz=UTC).isoformat(),
        "event": EVENT,
        "resource": {
            "prefect.resource.id": f"rlhf.feedback.{key}",
            "prefect.resource.name": f"judgments of round {key}",
        },
        "related": [],
        "payload": {"round": key, "page": page_url},
    }


def _post(api: str, path: str, body: object) -> None:
    if not api.startswith(("http://", "https://")):
        raise urllib.error.URLError(f"{api} is not an http address")
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{api}{path}", data=json.dumps(body).encode(), headers=headers
    )
    for name, value in authorization(api).items():
        # Where the server sends us elsewhere, Prefect's password does not go along.
        request.add_unredirected_header(name, value)
    try:
        with opener_for(api).open(request, timeout=_TIMEOUT_S):
            pass
    except http.client.HTTPException as error:
        raise urllib.error.URLError(f"no proper reply: {error!r}") from error
