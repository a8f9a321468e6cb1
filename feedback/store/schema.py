"""The tables of the labelling store, the same on SQLite and PostgreSQL.

Times are milliseconds since 1970, UTC; those of an assignment are read from a clock that cannot go
backwards (`feedback.store.database.steady_ms`). `labels` and `events` are append-only: triggers
refuse every update and deletion, whoever connects.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
    inspect,
    text,
)

from preferences.records import ShownOrder

SWAPS: tuple[ShownOrder | None, ...] = ("AB", "BA", None)
"""By an assignment's `swap`: which response was shown first; of imported ones nobody may know."""

metadata = MetaData()

_Key = BigInteger().with_variant(Integer, "sqlite")
"""SQLite assigns row numbers only to INTEGER keys."""

pairs = Table(
    "pairs",
    metadata,
    Column("pair_id", String(16), primary_key=True),
    Column("content", Text, nullable=False, comment="JSON: see `standing.content_of`"),
    Column("gold", String(8), comment="the right choice of a gold item, else null"),
    Column("created_ms", BigInteger, nullable=False),
)

rounds = Table(
    "rounds",
    metadata,
    Column("round", String(64), primary_key=True),
    Column("overlap", Integer, nullable=False),
    Column("published_ms", BigInteger, nullable=False),
    Column("notified_ms", BigInteger, comment="when its completeness was announced, else null"),
)

round_pairs = Table(
    "round_pairs",
    metadata,
    Column("round", String(64), ForeignKey("rounds.round"), primary_key=True),
    Column("pair_id", String(16), ForeignKey("pairs.pair_id"), primary_key=True),
    Column("position", BigInteger, nullable=False, comment="a hash: says nothing of the sampler"),
    Column("active", Integer, nullable=False, comment="0: the round no longer contains the pair"),
    Column("needed", Integer, nullable=False, comment="answers still wanted; 0: settled"),
)
WANTED = text("active = 1 AND needed > 0")
"""Condition on `round_pairs`: answers are still needed. An index uses the identical expression."""
Index(
    "round_pairs_wanted",
    round_pairs.c.round,
    round_pairs.c.position,
    sqlite_where=WANTED,
    postgresql_where=WANTED,
)
Index("round_pairs_pair", round_pairs.c.pair_id)

annotators = Table(
    "annotators",
    metadata,
    Column("annotator_id", String(64), primary_key=True),
    Column("role", String(16), nullable=False, comment="annotator, lead or source"),
    Column("kind", String(16), nullable=False, comment="human, or what was imported"),
    Column("token_hash", String(64), nullable=False, unique=True),
    Column("created_ms", BigInteger, nullable=False),
    Column("paused_reason", Text, comment="null: active"),
    Column("judged_from_label", _Key, nullable=False, comment="quality looks at later labels only"),
    Column("token_expires_ms", BigInteger, comment="null: never"),
    Column("rights", String(64), comment="of a lead, joined by commas; null: all"),
)

assignments = Table(
    "assignments",
    metadata,
    Column("assignment_id", String(32), primary_key=True, comment="random: says nothing"),
    Column("pair_id", String(16), ForeignKey("pairs.pair_id"), nullable=False),
    Column("round", String(64), ForeignKey("rounds.round"), nullable=False),
    Column("annotator_id", String(64), ForeignKey("annotators.annotator_id"), nullable=False),
    Column("purpose", String(8), nullable=False, comment="label, gold or repeat"),
    Column("swap", Integer, nullable=False, comment="1: response_b on the left; 2: unknown"),
    Column("state", String(8), nullable=False, comment="open, done or free"),
    Column("revision", Integer, nullable=False, comment="of its newest label, 0 = none yet"),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("served_ms", BigInteger, nullable=False),
    UniqueConstraint("pair_id", "annotator_id", "purpose"),
)
Index("assignments_pair", assignments.c.pair_id, assignments.c.purpose, assignments.c.state)
Index("assignments_mine", assignments.c.annotator_id, assignments.c.state)
Index("assignments_lease", assignments.c.state, assignments.c.lease_until_ms)

labels = Table(
    "labels",
    metadata,
    Column("label_id", _Key, primary_key=True, autoincrement=True),
    Column("assignment_id", String(32), ForeignKey("assignments.assignment_id"), nullable=False),
    Column("annotator_id", String(64), ForeignKey("annotators.annotator_id"), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("choice", String(9), nullable=False, comment="a choice, or withdrawn"),
    Column("strength", Integer),
    Column("reason", Text),
    Column("visible_ms", BigInteger),
    Column("submission_key", String(64), nullable=False),
    Column("guideline_hash", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    UniqueConstraint("assignment_id", "revision"),
    UniqueConstraint("annotator_id", "submission_key"),
)

events = Table(
    "events",
    metadata,
    Column("event_id", _Key, primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("annotator_id", String(64)),
    Column("round", String(64)),
    Column("pair_id", String(16)),
    Column("assignment_id", String(32)),
    Column("detail", Text),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_hash", String(64), primary_key=True),
    Column("annotator_id", String(64), ForeignKey("annotators.annotator_id"), nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

_PG_FUNCTION = """
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger AS $$
BEGIN RAISE EXCEPTION 'append-only'; END $$ LANGUAGE plpgsql
"""


def _protect(table: Table, connection: Connection, **_: Any) -> None:
    """Adds triggers that refuse every update and deletion in a newly created table."""
    bodies = {
        "sqlite": "BEGIN SELECT RAISE(ABORT, 'append-only'); END",
        "postgresql": "FOR EACH ROW EXECUTE FUNCTION refuse_change()",
    }
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_PG_FUNCTION)
    for operation in ("UPDATE", "DELETE"):
        connection.exec_driver_sql(
            f"CREATE TRIGGER {table.name}_no_{operation.lower()} BEFORE {operation} "
            f"ON {table.name} {bodies[connection.dialect.name]}"
        )


APPEND_ONLY = (labels, events)
for _table in APPEND_ONLY:
    event.listen(_table, "after_create", _protect)


def unprotect(connection: Connection) -> None:
    """Lets rows be deleted until `protect`: withdrawing is the one reason to."""
    for table in APPEND_ONLY:
        of = f" ON {table.name}" if connection.dialect.name == "postgresql" else ""
        for operation in ("update", "delete"):
            connection.exec_driver_sql(f"DROP TRIGGER {table.name}_no_{operation}{of}")


def protect(connection: Connection) -> None:
    """Refuses updates and deletions again."""
    for table in APPEND_ONLY:
        _protect(table, connection)


def bring_up_to_date(connection: Connection) -> None:
    """Changes the tables of an earlier version: what it holds stays as it is.

    Drops a column that held secrets of sessions in clear, and adds what did not exist yet.
    """
    if "csrf" in _columns(connection, "sessions"):
        connection.exec_driver_sql("ALTER TABLE sessions DROP COLUMN csrf")
    for name, kind in (("token_expires_ms", "BIGINT"), ("rights", "VARCHAR(64)")):
        if name not in _columns(connection, "annotators"):
            connection.exec_driver_sql(f"ALTER TABLE annotators ADD COLUMN {name} {kind}")


def _columns(connection: Connection, table: str) -> set[str]:
    return {str(column["name"]) for column in inspect(connection).get_columns(table)}
