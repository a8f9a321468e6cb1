"""Connecting to MLflow: its store, its experiment, and a run that has a certain tag."""

import functools
import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT
from mlflow.exceptions import MlflowException
from mlflow.store.artifact import http_artifact_repo
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

from tasks.tracking.sent import DEFAULT_STORE, is_default_store
from tasks.workspace.held import held

DEFAULT_EXPERIMENT = "rlhf-rounds"
# It writes the traceback of each error of the database, a full disk's too, before it raises it.
logging.getLogger("mlflow.store.db.utils").addFilter(lambda record: not record.exc_info)
ARTIFACT_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
"""Where MLflow's tables hold addresses below the experiment's artifacts."""
SLOWEST = 5_000_000
"""Bytes a second at which a server is expected at least to pass an artifact on to its own store."""

_REPOSITORY: Any = http_artifact_repo
_REQUEST = _REPOSITORY.http_request
_TIMEOUT: Any = MLFLOW_HTTP_REQUEST_TIMEOUT


def _artifact_request(*arguments: Any, **named: Any) -> Any:
    """As MLflow's own, but it waits the longer for a reply, the larger the file is that it sends.

    A server replies once it has passed the file on, weights to S3 say. MLflow waits for that as for
    any other reply, then sends all of it again.
    """
    seconds = _TIMEOUT.get()
    size = os.fstat(named["data"].fileno()).st_size if "data" in named else 0
    patience = {"timeout": (seconds, seconds + size / SLOWEST)}
    return _REQUEST(*arguments, **patience | named)


_REPOSITORY.http_request = _artifact_request


@dataclass(frozen=True, slots=True)
class Store:
    """A connected tracking store and the experiment that everything goes into."""

    client: MlflowClient
    experiment: str
    """The experiment's id."""


def connect(uri: str) -> Store:
    """Connect to `uri`, creating the SQLite file and the experiment where they do not exist.

    The experiment is that of `MLFLOW_EXPERIMENT_NAME`, or `rlhf-rounds`.

    Four processes that create one SQLite file at once make three of them crash (MLflow's
    migrations race), hence the lock beside the file.

    Raises:
        MlflowException: the store does not respond, or the file is damaged.
    """
    store = _connect(uri, os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT)
    # Its registry looks for models in whichever store was named last, not in its client's.
    mlflow.set_tracking_uri(uri)
    return store


@functools.lru_cache(maxsize=4)
def _connect(uri: str, name: str) -> Store:
    with _creation_lock(uri):
        _create_tables(uri)
        try:
            _take_artifacts_along(uri, name)
        except sqlite3.Error as error:  # As MLflow says it where it finds that first.
            raise MlflowException(f"{uri.removeprefix('sqlite:///')}: {error}") from None
        client = MlflowClient(uri)
        return Store(client, _experiment(client, name, _artifact_location(uri)))


def mlflow_key(name: str) -> str:
    """`name` with what MLflow refuses in a key (such as `@` and `?`) replaced."""
    return re.sub(r"[^\w.\- /:]", ".", name)


@contextmanager
def _creation_lock(uri: str) -> Iterator[None]:
    folder = _sqlite_folder(uri)
    if folder is None:
        yield
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with held(folder / "create.lock"):
        yield


def _create_tables(uri: str) -> None:
    """Make the tables of a new SQLite store in a draft file, renamed when it is complete.

    A process that dies in the middle (a stage's shipper has seconds) would otherwise leave a
    store that MLflow can neither use nor finish. It is for its owner only, whatever the umask; so
    is the default store of an earlier version. (A store that somebody else set up is theirs.)
    """
    if _sqlite_folder(uri) is None:
        return
    target = Path(uri.removeprefix("sqlite:///"))
    if target.exists():
        if is_default_store(uri):
            target.chmod(0o600)
        return
    draft = target.with_name(f".{target.name}.draft")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    MlflowClient(f"sqlite:///{draft}").search_experiments(max_results=1)
    draft.replace(target)


def _take_artifacts_along(uri: str, experiment: str) -> None:
    """Correct the addresses of artifacts in a SQLite store that was moved or copied with them.

    MLflow stores absolute addresses: it would look for artifacts, write new ones, and have `make
    prune` remove some, in the old place. Where that is still there, only a checkout's own store is
    known to be a copy; one that somebody set up may keep its artifacts elsewhere.
    """
    if (here := _artifact_location(uri)) is None or not Path(unquote(urlsplit(here).path)).is_dir():
        return
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database, database:
        query = "SELECT artifact_location FROM experiments WHERE name = ?"
        row = database.execute(query, (experiment,)).fetchone()
        if row is None or row[0] == here:
            return
        copied = is_default_store(uri) and row[0].endswith(
            f"/{DEFAULT_STORE.parent.as_posix()}/artifacts"
        )
        if not copied and Path(unquote(urlsplit(row[0]).path)).exists():
            return
        for table, column in ARTIFACT_COLUMNS:
            database.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                f" WHERE {column} = ? OR {column} LIKE ? || '/%'",
                (here, len(row[0]) + 1, row[0], row[0]),
            )
    # Where this process has found the artifacts of runs before.
    _artifact_repos_cache.clear()


def _sqlite_folder(uri: str) -> Path | None:
    """The folder of a SQLite file's URI, None for any other store."""
    return Path(uri.removeprefix("sqlite:///")).parent if uri.startswith("sqlite:///") else None


def _artifact_location(uri: str) -> str | None:
    """Beside a SQLite file; None for a server, which decides by itself."""
    folder = _sqlite_folder(uri)
    return None if folder is None else (folder / "artifacts").resolve().as_uri()


def _experiment(client: MlflowClient, name: str, artifact_location: str | None) -> str:
    if (found := client.get_experiment_by_name(name)) is not None:
        return str(found.experiment_id)
    try:
        return client.create_experiment(name, artifact_location=artifact_location)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        # Another process was faster.
        return _experiment(client, name, artifact_location)


def logged_files(store: Store, model: str) -> Path | None:
    """Where the files of a logged model's output are on this disk; None where they are not."""
    location = urlsplit(store.client.get_logged_model(model).artifact_location)
    return Path(unquote(location.path)) / "model" if location.scheme == "file" else None


def find_run(store: Store, tag: str, value: str) -> Run | None:
    """The run whose `tag` is `value`, None where there is none."""
    mark = '"' if "'" in value else "'"
    quoted = f"{mark}{value.replace(mark, '')}{mark}"
    runs = store.client.search_runs(
        [store.experiment], filter_string=f"tags.`{tag}` = {quoted}", max_results=1
    )
    return runs[0] if runs else None
