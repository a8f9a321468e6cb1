"""The store's file: complete after every stop, for its owner only, backed up live and restored."""

import signal
import sqlite3
import stat
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from feedback.store import accounts, database, schema
from tests.integration.test_feedback_http import (
    feedback,
    label_everything,
    start,
    write_comparisons,
)
from tests.waiting import PATIENCE_SECONDS


def published(folder: Path, pairs: int) -> tuple[Path, str]:
    """A store with a round, and the token of somebody who labels it."""
    store = folder / "feedback.db"
    comparisons = write_comparisons(folder / "comparisons.jsonl", pairs)
    done = feedback(store, "publish", "--round", "r1", "--comparisons", str(comparisons))
    assert done.returncode == 0, done.stderr
    return store, feedback(store, "token", "ana").stdout.strip()


def labels_in(file: Path, into: Path) -> int:
    """Labels in this one file, without those that SQLite keeps beside it."""
    into.mkdir()
    copy = into / "copy.db"
    copy.write_bytes(file.read_bytes())
    with closing(sqlite3.connect(copy)) as connection:
        return int(connection.execute("SELECT count(*) FROM labels").fetchone()[0])


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_stopped_server_leaves_every_label_in_one_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    store, token = published(tmp_path, 30)
    server, address = start(store, "")
    try:
        given = label_everything(address, token)
        assert given >= 30
        server.send_signal(number)
        assert server.wait(PATIENCE_SECONDS) == 0
    finally:
        server.kill()
        server.wait()
    assert labels_in(store, tmp_path / "elsewhere") == given
    assert not store.with_name("feedback.db-wal").exists()


@pytest.mark.long
def test_a_stop_is_complete_even_while_somebody_else_has_the_store_open(tmp_path: Path) -> None:
    store, token = published(tmp_path, 5)
    server, address = start(store, "")
    with closing(sqlite3.connect(store)) as other:
        other.execute("SELECT count(*) FROM labels").fetchone()
        try:
            given = label_everything(address, token)
            server.terminate()
            assert server.wait(PATIENCE_SECONDS) == 0
        finally:
            server.kill()
            server.wait()
        assert labels_in(store, tmp_path / "elsewhere") == given


@pytest.mark.long
def test_a_backup_of_the_open_page_is_restored_with_every_confirmed_answer(tmp_path: Path) -> None:
    store, token = published(tmp_path, 60)
    backup, again = tmp_path / "backup.db", tmp_path / "again" / "feedback.db"
    server, address = start(store, "")
    try:
        worker = threading.Thread(target=label_everything, args=(address, token))
        worker.start()
        headers = {"Authorization": f"Bearer {token}"}
        confirmed = 0
        while confirmed < 20:
            view = httpx.post(f"{address}/api/task", headers=headers, timeout=60).json()
            confirmed = view["mine"]
            time.sleep(0.02)
        done = feedback(store, "backup", str(backup))
        assert done.returncode == 0, done.stderr
        worker.join()
    finally:
        server.kill()
        server.wait()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert labels_in(backup, tmp_path / "elsewhere") >= confirmed
    assert [one.name for one in tmp_path.glob("*backup*")] == ["backup.db"]

    done = feedback(again, "restore", str(backup))
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(again.stat().st_mode) == 0o600
    with closing(sqlite3.connect(backup)) as one, closing(sqlite3.connect(again)) as other:
        for table in ("labels", "assignments", "annotators", "pairs", "round_pairs", "rounds"):
            query = f"SELECT * FROM {table}"
            assert one.execute(query).fetchall() == other.execute(query).fetchall(), table
    # The page continues on the restored store, with the same token, to the end of the round.
    server, address = start(again, "")
    try:
        label_everything(address, token, keys="resumed")
    finally:
        server.terminate()
        assert server.wait(PATIENCE_SECONDS) == 0
    assert "60 of 60 pairs settled, complete" in feedback(again, "status").stdout
    kinds = "SELECT kind FROM events WHERE kind IN ('backup', 'restore')"
    for file, expected in ((store, ["backup"]), (again, ["restore"])):
        with closing(sqlite3.connect(file)) as connection:
            assert [row[0] for row in connection.execute(kinds)] == expected


@pytest.mark.long
def test_what_cannot_be_backed_up_or_restored_is_one_line(tmp_path: Path) -> None:
    store, _ = published(tmp_path, 2)
    nothing, text, other = tmp_path / "no.db", tmp_path / "text.db", tmp_path / "other.db"
    text.write_text("not a database " * 200, encoding="utf-8")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
    good = tmp_path / "good.db"
    assert feedback(store, "backup", str(good)).returncode == 0
    broken = tmp_path / "broken.db"
    broken.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    stray = tmp_path / "stray.db"
    stray.with_name("stray.db-wal").write_bytes(b"x")
    before = store.read_bytes()
    for where, command, file, message in (
        (nothing, "backup", tmp_path / "b.db", "no.db: no such store"),
        (store, "backup", store, "feedback.db exists already"),
        (store, "backup", good, "good.db exists already"),
        (nothing, "restore", tmp_path / "b.db", "b.db: no such file"),
        (nothing, "restore", text, "text.db: not a labelling store"),
        (nothing, "restore", other, "other.db: not a labelling store"),
        (nothing, "restore", broken, "broken.db: not a labelling store"),
        (store, "restore", good, "feedback.db exists already; move it away"),
        (stray, "restore", good, "stray.db-wal exists already; move it away"),
    ):
        done = feedback(where, command, str(file))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr
    assert store.read_bytes() == before
    assert not nothing.exists()


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_store_on_postgresql_is_left_to_its_own_tools(tmp_path: Path, command: str) -> None:
    done = feedback("postgresql://user@host/name", command, str(tmp_path / "b.db"))
    assert done.returncode == 2
    assert "pg_dump" in done.stderr


@pytest.mark.parametrize("url", ["{}", "sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_a_store_is_for_its_owner_only_however_it_is_named(tmp_path: Path, url: str) -> None:
    path = tmp_path / "feedback.db"
    for name in ("feedback.db", "feedback.db-wal", "feedback.db-shm"):
        (tmp_path / name).touch(mode=0o644)
    opened = database.Database(url.format(path))
    with opened.writing() as connection:
        accounts.new_token(connection, "ana")
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    opened.close()
    assert modes == {name: 0o600 for name in modes}
    assert len(modes) == 3


def test_no_secret_of_a_session_can_be_read_in_the_store(tmp_path: Path) -> None:
    opened = database.Database(tmp_path / "feedback.db")
    with opened.writing() as connection:
        accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
        person = accounts.by_session(connection, session)
    assert person is not None
    assert person.csrf is not None
    opened.close()
    stored = (tmp_path / "feedback.db").read_bytes()
    assert session.encode() not in stored
    assert person.csrf.encode() not in stored


def test_a_store_of_an_earlier_version_forgets_its_csrf_secrets_and_keeps_its_sessions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "feedback.db"
    opened = database.Database(path)
    with opened.writing() as connection:
        token = accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
    opened.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE sessions ADD COLUMN csrf VARCHAR(64) NOT NULL DEFAULT 'x'")
        connection.execute(
            "UPDATE sessions SET csrf = 'a-secret-of-forty-three-characters-in-clear'"
        )
        for name in ("token_expires_ms", "rights"):
            connection.execute(f"ALTER TABLE annotators DROP COLUMN {name}")
        connection.commit()
    opened = database.Database(path)
    with opened.writing() as connection:
        person = accounts.by_session(connection, session)
        assert accounts.by_token(connection, token) == replace(person, csrf=None)
        other: Any = accounts.by_session(connection, accounts.open_session(connection, "ana"))
    opened.close()
    assert person is not None
    assert other.csrf != person.csrf
    assert "csrf" not in schema.sessions.c
    with closing(sqlite3.connect(path)) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(sessions)")]
    assert names == ["session_hash", "annotator_id", "expires_ms"]
