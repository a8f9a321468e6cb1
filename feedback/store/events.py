"""The append-only log of what happened: serve, label, undo, expire, publish, export, pause."""

import json
from typing import Any

from sqlalchemy import Connection, insert

from feedback.store import schema
from feedback.store.database import now_ms

_ADD = insert(schema.events)


def record(
    connection: Connection,
    kind: str,
    *,
    annotator_id: str | None = None,
    round_key: str | None = None,
    pair_id: str | None = None,
    assignment_id: str | None = None,
    **detail: Any,
) -> None:
    """Adds an entry to the log, in the same transaction as the event."""
    row = {
        "at_ms": now_ms(),
        "kind": kind,
        "annotator_id": annotator_id,
        "round": round_key,
        "pair_id": pair_id,
        "assignment_id": assignment_id,
        "detail": json.dumps(detail, ensure_ascii=False) if detail else None,
    }
    connection.execute(_ADD, [row])
