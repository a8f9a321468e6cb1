"""How much of a spool has arrived in MLflow: `sent.json`, read and replaced as a whole."""

import functools
import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tasks.workspace.files import read_json, write_json

DEFAULT_STORE = Path(".work") / "mlflow" / "mlflow.db"
"""Below the main checkout."""

Curve = Literal["metrics", "system"]
CURVES: tuple[Curve, ...] = ("metrics", "system")
"""Files of a spool (`metrics.jsonl`), and the fields of `Sent` that say how much has arrived."""


@dataclass(slots=True, kw_only=True)
class Sent:
    """Progress of shipping one spool to one tracking server."""

    uri: str
    """Digest of the tracking URI (which may hold a password); another server starts anew."""
    made: int = 0
    """When MLflow made the store, if it is a file (ms since 1970); one that was deleted and made
    again starts anew. 0: not known."""
    run: str = ""
    """Id of the MLflow run, empty until it exists."""
    described: bool = False
    """Parameters, tags and data set inputs have arrived."""
    metrics: int = 0
    """Bytes of metrics.jsonl that have arrived."""
    system: int = 0
    """Bytes of system.jsonl that have arrived."""
    status: str = ""
    """Last status reported to MLflow."""
    ended_ms: int = 0
    """`ended_ms` of the finish.json whose metrics and artifacts have arrived; 0 for none."""
    rounds_ms: int = 0
    """`recorded_ms` of the rounds.json that has arrived; 0 for none."""
    models: dict[str, str] = field(default_factory=dict)
    """Path of a model that has arrived -> id of the logged model."""
    models_done: bool = False
    """All models of the finish.json have arrived."""
    outs: dict[str, str] = field(default_factory=dict)
    """Output path -> hash in dvc.lock that the run has been tagged with."""


def load_sent(folder: Path, uri: str) -> Sent:
    """Progress of shipping the spool in `folder` to `uri`; none yet if it went elsewhere before.

    Elsewhere is also a file that is no longer there.
    """
    path, digest, made = folder / "sent.json", store_digest(folder, uri), _made(uri)
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["uri"] == digest and _is_in(made, record, path):
            return Sent(**record | {"made": made or record.get("made", 0)})
    return Sent(uri=digest, made=made or 0)


def save_sent(folder: Path, sent: Sent) -> None:
    """Replace the spool's `sent.json`."""
    write_json(folder / "sent.json", asdict(sent))


def rounds_are_new(folder: Path, sent: Sent) -> bool:
    """Whether an execution has a rounds.json that has not arrived."""
    rounds = read_json(folder / "rounds.json")
    return rounds is not None and rounds["recorded_ms"] != sent.rounds_ms


def is_default_store(uri: str) -> bool:
    """Whether it is the store of a checkout, at its usual place."""
    return uri.startswith("sqlite:///") and uri.endswith(f"/{DEFAULT_STORE.as_posix()}")


def end_is_new(folder: Path, sent: Sent) -> bool:
    """Whether an execution has an end.json that has not arrived."""
    end = read_json(folder / "end.json")
    return end is not None and end["ended_ms"] != sent.ended_ms


def store_digest(folder: Path, uri: str) -> str:
    """Twelve hex digits that stand for a tracking URI.

    The default store moves with its checkout, so it has the same digits wherever the checkout that
    `folder` is in may be.
    """
    store = f"/{DEFAULT_STORE.as_posix()}"
    if uri.startswith("sqlite:///") and uri.endswith(store):
        checkout = Path(uri.removeprefix("sqlite:///").removesuffix(store))
        if folder.resolve().is_relative_to(checkout.resolve()):
            uri = "the store of this checkout"
    return hashlib.sha256(uri.encode()).hexdigest()[:12]


def damage(uri: str) -> str | None:
    """What SQLite finds wrong with a store that is a file; None for a sound or missing one."""
    path = _file(uri)
    if path is None or not path.exists():
        return None
    try:
        with closing(_opened(path)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # Locked at present.
        return None
    except sqlite3.DatabaseError as error:
        found = str(error)
    found = " ".join(str(found).split())
    return None if found == "ok" else f"{path}: MLflow's database is damaged ({found})"


def _is_in(made: int | None, record: Mapping[str, Any], path: Path) -> bool:
    """Whether a store that was made then can have what the sent.json at `path` says."""
    if not made:
        return made is not None
    if before := record.get("made"):
        return bool(before == made)
    # There was no store yet when it was written, or an earlier version wrote it and did not say:
    # what was sent before that time is elsewhere.
    return path.stat().st_mtime_ns // 1_000_000 >= made


def _made(uri: str) -> int | None:
    """When MLflow made the tables of a store that is a file, None where that file is missing.

    0 for a server, and where the file cannot be read at present. By hand, since this is asked of
    every spool, also where MLflow has not been imported.
    """
    path = _file(uri)
    if path is None:
        return 0
    if not path.exists():
        return None
    try:
        now = path.stat()
        return _noted_in(path, now.st_ino, now.st_size, now.st_mtime_ns)
    except (OSError, sqlite3.Error):
        return 0


@functools.lru_cache(maxsize=8)
def _noted_in(path: Path, *_file: int) -> int:
    """As the file says; read again only where it is another one by now."""
    with closing(_opened(path)) as database:
        (made,) = database.execute("SELECT min(creation_time) FROM experiments").fetchone()
    return int(made or 0)


def _file(uri: str) -> Path | None:
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
