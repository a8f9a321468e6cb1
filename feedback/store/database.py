"""Transactions on SQLite (one file, nothing to install) or PostgreSQL (teams), through SQLAlchemy.

Writers queue: within a process on a lock, between processes on SQLite's write lock or a PostgreSQL
advisory lock. So every decision (who gets which pair) sees all earlier ones. A committed
transaction is on disk: write-ahead log with `synchronous=FULL`.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select, text

from feedback.annotators import LabelParams
from feedback.store import schema

_PG_LOCK = 5_714_003
"""Advisory lock taken by all writers of our store; any fixed number will do."""


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def steady_ms(connection: Connection) -> int:
    """Milliseconds on the clock of leases, which runs evenly however the machine's clock is set.

    It starts from the machine's clock when the store is opened, or from the newest time that the
    store holds of it, whichever is later: it never goes backwards, not even across a restart.
    """
    offset: int = connection.get_execution_options()["steady_offset_ms"]
    return _running_ms() + offset


def _running_ms() -> int:
    """Milliseconds since some moment, sleep of the machine included where it can be told."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


class Database:
    """An open store; `url` is a path (SQLite) or a SQLAlchemy URL."""

    def __init__(self, url: str | Path) -> None:
        """Opens the store and creates missing tables."""
        self._writer = threading.Lock()
        self._steady_offset_ms = 0
        self._file = sqlite_file(str(url))
        self._engine = _postgres(str(url)) if self._file is None else _sqlite(self._file)
        # By default each statement of PostgreSQL's sees what was written since the one before.
        at_once = {"isolation_level": "REPEATABLE READ"} if self._file is None else {}
        self._reader = self._engine.execution_options(**at_once)
        with self.writing() as connection:
            schema.metadata.create_all(connection)
            schema.bring_up_to_date(connection)
            newest = connection.execute(select(func.max(schema.assignments.c.served_ms))).scalar()
        self._steady_offset_ms = max(now_ms(), newest or 0) - _running_ms()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that sees every earlier one; committed durably when the block ends."""
        with self._writer, self._engine.connect() as connection:
            connection = connection.execution_options(
                writes=True, steady_offset_ms=self._steady_offset_ms
            )
            with connection.begin():
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view that blocks no writer."""
        with self._reader.connect() as connection, connection.begin():
            yield connection

    def compact(self) -> None:
        """Rewrites SQLite's file or PostgreSQL's tables, so that nothing deleted stays in them.

        SQLite's log is emptied too; PostgreSQL's stays until it is recycled.
        """
        if self._file is None:
            with self._engine.connect() as connection:
                # Refused within a transaction.
                alone = connection.execution_options(isolation_level="AUTOCOMMIT")
                for table in schema.metadata.tables:
                    alone.exec_driver_sql(f"VACUUM (FULL) {table}")
            return
        with closing(self._engine.raw_connection()) as raw:
            raw.cursor().execute("VACUUM")
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Closes all connections; SQLite's file is then complete without its log."""
        # SQLite does this by itself when the last connection is closed, of all processes.
        if self._file is not None and self._file.exists():
            with closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._engine.dispose()


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite store, from its path or its SQLAlchemy URL; None for PostgreSQL."""
    if "://" not in url:
        return Path(url).absolute()
    if not url.startswith("sqlite"):
        return None
    return Path(make_url(url).database or "").absolute()


def usual_store() -> str:
    """The store of commands that name none: the one that the stage `label` of this folder asks.

    Raises:
        ValueError: params.yaml, which may name it, cannot be read.
    """
    if named := os.environ.get("RLHF_FEEDBACK_STORE"):
        return named
    try:
        params = YAML(typ="safe", pure=True).load(Path("params.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return LabelParams().store
    except (UnicodeDecodeError, YAMLError):
        problem = "is no YAML, and `label.store` in it may name the store; or name it by --store"
        raise ValueError(f"params.yaml: {problem}") from None
    label = params.get("label") if isinstance(params, dict) else None
    store = label.get("store") if isinstance(label, dict) else None
    return store if isinstance(store, str) else LabelParams().store


def shown(store: str) -> str:
    """The store as messages name it: a path, or an address without the password."""
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", store)


def beside(path: Path) -> list[Path]:
    """Files that SQLite keeps beside an open database: its log, and the log's index."""
    return [path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm")]


def _sqlite(path: Path) -> Engine:
    path.parent.mkdir(parents=True, exist_ok=True)
    # For its owner only, and so SQLite's files beside it, which take over its mode.
    path.touch(mode=0o600)
    for each in (path, *beside(path)):
        if each.exists():
            each.chmod(0o600)
    url = URL.create("sqlite", database=str(path))
    engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgres(url: str) -> Engine:
    # Use the driver that the extra installs, not SQLAlchemy's default.
    url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the store needs the Python package {error.name}: "
            "pip install -c constraints.txt '.[postgres]'"
        ) from error
    event.listen(engine, "begin", _lock_postgres)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    # We issue BEGIN ourselves: the driver's would let a reader become a writer midway.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _lock_postgres(connection: Connection) -> None:
    if connection.get_execution_options().get("writes", False):
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PG_LOCK})
