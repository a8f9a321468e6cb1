"""Copies of a SQLite store in one file: taken while the page is open, and restored."""

import os
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from feedback.store import schema
from feedback.store.database import beside, sqlite_file

PART = ".part"
"""At the end of a copy that is being written."""
ABANDONED_S = 86_400.0
"""Nobody writes a part any more that is older."""


class BackupError(ValueError):
    """A backup or restoration that is refused; the message says why."""


def back_up(store: str, copy: Path) -> int:
    """Writes the store as it is at this moment to a new file; returns the number of labels in it.

    Every answer confirmed before the call is in the copy; nobody at the page has to wait.

    Raises:
        BackupError: there is no such store, it is not SQLite's, or the copy exists already.
    """
    source = _file_of(store)
    if not source.exists():
        raise BackupError(f"{source}: no such store")
    if copy.exists():
        raise BackupError(f"{copy} exists already; name a new file")
    return _copy(source, copy)


def restore(copy: Path, store: str) -> int:
    """Makes a store from a backup; returns the number of labels in it.

    Raises:
        BackupError: the copy is not a whole store, or there is a store already: nothing that holds
            labels is ever overwritten.
    """
    target = _file_of(store)
    if not copy.exists():
        raise BackupError(f"{copy}: no such file")
    # A log without its store would be taken for the log of the restored one.
    for path in (target, *beside(target)):
        if path.exists():
            raise BackupError(f"{path} exists already; move it away, or restore to another --store")
    return _copy(copy, target)


def _file_of(store: str) -> Path:
    path = sqlite_file(store)
    if path is None:
        raise BackupError("the store is not a file; PostgreSQL has pg_dump and pg_restore for this")
    return path


def _copy(source: Path, target: Path) -> int:
    """Copies a whole store, or leaves no trace."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    draft, name = tempfile.mkstemp(PART, f".{target.name}.", target.parent)
    part = Path(name)
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as old,
            closing(sqlite3.connect(part)) as new,
        ):
            old.backup(new)
            # One file, without a log beside it.
            new.execute("PRAGMA journal_mode=DELETE")
            labels = _checked(new)
        os.fsync(draft)
        part.rename(target)
        folder = os.open(target.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except sqlite3.OperationalError as error:  # A full disk, for one: nothing against the source.
        raise BackupError(f"{source} cannot be copied to {target}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise BackupError(f"{source}: not a labelling store ({error})") from error
    finally:
        os.close(draft)
        part.unlink(missing_ok=True)
    return labels


def _remove_abandoned(target: Path) -> None:
    """Remove what killed copies have left: parts in which nothing has been written for long."""
    for part in target.parent.glob(f".{target.name}.*{PART}"):
        with suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > ABANDONED_S:
                part.unlink()


def _checked(store: sqlite3.Connection) -> int:
    (found,) = store.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    tables = {name for (name,) in store.execute("SELECT name FROM sqlite_master")}
    missing = sorted(set(schema.metadata.tables) - tables)
    if missing:
        raise sqlite3.DatabaseError(f"it has no table {missing[0]}")
    return int(store.execute("SELECT count(*) FROM labels").fetchone()[0])
