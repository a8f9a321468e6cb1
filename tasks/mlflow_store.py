"""MLflow's side of tracking: connecting, and finding the runs that belong to a spool.

Runs are found by tags, so that a run that was made but not noted (a crash, a lost reply) is found
again instead of made twice: `rlhf.execution` on the parent run of a pipeline execution,
`rlhf.spool` on the child run of a stage.
"""

import fcntl
import functools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

DEFAULT_EXPERIMENT = "rlhf-rounds"
PARENT_TAGS = ("mlflow.source.git.commit", "git.commit", "git.dirty")
"""Tags of a stage that hold for its whole execution and so belong on the parent run too."""


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
    """
    return _connect(uri, os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT)


@functools.lru_cache(maxsize=4)
def _connect(uri: str, name: str) -> Store:
    with _creation_lock(uri):
        _create_tables(uri)
        mlflow.set_tracking_uri(uri)
        client = MlflowClient(uri)
        return Store(client, _experiment(client, name, _artifact_location(uri)))


def stage_run(store: Store, start: Mapping[str, str], tags: Mapping[str, str]) -> Run:
    """The child run of a spool (`start` is its start.json), made where there is none."""
    spool = f"{start['stage']}/{start['id']}/{start['execution']}"
    if (run := _find(store, "rlhf.spool", spool)) is not None:
        return run
    return store.client.create_run(
        store.experiment,
        start_time=int(start["started_ms"]),
        run_name=start["stage"],
        tags={
            **tags,
            "rlhf.spool": spool,
            "rlhf.stage": start["stage"],
            MLFLOW_PARENT_RUN_ID: execution_run(store, start, tags).info.run_id,
            MLFLOW_RUN_NAME: start["stage"],
        },
    )


def execution_run(store: Store, start: Mapping[str, str], tags: Mapping[str, str]) -> Run:
    """The parent run of the execution that a spool belongs to, made where there is none."""
    execution = start["execution"]
    if (run := _find(store, "rlhf.execution", execution)) is not None:
        return run
    shared = {key: tags[key] for key in PARENT_TAGS if key in tags}
    return store.client.create_run(
        store.experiment,
        start_time=int(start["started_ms"]),
        run_name=execution,
        tags={**shared, "rlhf.execution": execution},
    )


def mlflow_key(name: str) -> str:
    """`name` with what MLflow refuses in a key (such as `@` and `?`) replaced."""
    return re.sub(r"[^\w.\- /:]", ".", name)


@contextmanager
def _creation_lock(uri: str) -> Iterator[None]:
    folder = _sqlite_folder(uri)
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "create.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _create_tables(uri: str) -> None:
    """Make the tables of a new SQLite store in a draft file, renamed when it is complete.

    A process that dies in the middle (a stage's shipper has seconds) would otherwise leave a
    store that MLflow can neither use nor finish.
    """
    if _sqlite_folder(uri) is None or (target := Path(uri.removeprefix("sqlite:///"))).exists():
        return
    draft = target.with_name(f".{target.name}.draft")
    draft.unlink(missing_ok=True)
    MlflowClient(f"sqlite:///{draft}").search_experiments(max_results=1)
    draft.replace(target)


def _sqlite_folder(uri: str) -> Path | None:
    """The folder of a SQLite file's URI, None for any other store."""
    return Path(uri.removeprefix("sqlite:///")).parent if uri.startswith("sqlite:///") else None


def _artifact_location(uri: str) -> str | None:
    """Beside a SQLite file; a server has its own answer."""
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


def _find(store: Store, tag: str, value: str) -> Run | None:
    quoted = value.replace("'", "")
    runs = store.client.search_runs(
        [store.experiment], filter_string=f"tags.`{tag}` = '{quoted}'", max_results=1
    )
    return runs[0] if runs else None
