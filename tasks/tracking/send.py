"""Sends one spool to MLflow: run, parameters, inputs, curves, and the rest once it has ended.

Every step is noted in `sent.json` as soon as MLflow has confirmed it and is harmless to repeat, so
an interruption between any two lines costs a repetition and creates no duplicate.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE
from sqlalchemy.exc import SQLAlchemyError

from rlhf.manifests import flush
from tasks.params.redaction import redact
from tasks.tracking.entities import datasets, last_step, points, run_tags
from tasks.tracking.models import finished_model, log_model
from tasks.tracking.runs import (
    METRICS_PER_BATCH,
    PARAM_LENGTH,
    compare_params,
    execution_run,
    is_deleted,
    log_params,
    send_news,
    stage_run,
)
from tasks.tracking.sent import CURVES, Curve, Sent, load_sent, save_sent
from tasks.tracking.spool import EXECUTIONS_FOLDER, is_live, read_finish
from tasks.tracking.spools import run_behind
from tasks.tracking.store import Store, connect, mlflow_key
from tasks.tracking.tables import SAMPLES, log_samples
from tasks.workspace.dvc_lockfile import read_lock
from tasks.workspace.held import held

GONE = "outputs.gone"
"""Tag of a run that lists the outputs that could not be sent because they no longer exist."""
REFUSALS = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "BAD_REQUEST"}
"""Responses of a tracking server that concern this spool only: it may accept the next one."""


class TrackingError(Exception):
    """MLflow did not accept a spool: it is unreachable, or it refused the content."""

    def __init__(self, message: str, *, refused: bool) -> None:
        """Keep the first line of `message`, without passwords."""
        super().__init__(redact(message).strip().split("\n")[0][:300])
        self.refused = refused


def send(folder: Path, *, uri: str, models: bool) -> None:
    """Send the part of the spool in `folder` that has not arrived at `uri` yet.

    Raises:
        TrackingError: MLflow could not be reached, or refused it.
    """
    with named_errors():
        _Sender(folder, connect(uri), load_sent(folder, uri)).send(models=models)


def send_execution(folder: Path, *, uri: str) -> None:
    """Send what the execution in `folder` has come to, or how it ended with results and report.

    Raises:
        TrackingError: MLflow could not be reached, or refused it.
    """
    root = folder.parents[2]
    with named_errors(), _runs_lock(root):
        send_news(connect(uri), root, folder, load_sent(folder, uri))


def parent_run(root: Path, execution: str, *, uri: str) -> str:
    """Id of the parent run of an execution that has started, created if there is none.

    Raises:
        TrackingError: MLflow could not be reached, or refused it.
    """
    start = json.loads((root / EXECUTIONS_FOLDER / execution / "start.json").read_text("utf-8"))
    with named_errors(), _runs_lock(root):
        return str(execution_run(connect(uri), root, execution, start).info.run_id)


class _Sender:
    """One spool, the store it goes to, and its progress."""

    def __init__(self, folder: Path, store: Store, sent: Sent) -> None:
        self.folder = folder
        self.root = folder.parents[3]
        self.store = store
        self.client = store.client
        self.sent = sent
        self.start: dict[str, Any] = json.loads((folder / "start.json").read_text("utf-8"))
        self.tags = run_tags(self.start)

    def send(self, *, models: bool) -> None:
        if not self.sent.run or is_deleted(self.store, self.sent.run):
            self.sent = Sent(uri=self.sent.uri, made=self.sent.made)
            with _runs_lock(self.root):
                run = stage_run(self.store, self.root, self.start, self.tags)
                self.sent.run = run.info.run_id
            self._note()
        if not self.sent.described:
            self._describe()
        # Read before the metrics: what was logged before the end is sent before the end.
        finish, live = read_finish(self.folder), is_live(self.folder)
        for curve in CURVES:
            self._send_metrics(curve)
        if finish is None:
            self._set_status("RUNNING" if live else "KILLED")
            return
        if finish["ended_ms"] != self.sent.ended_ms:
            self._finish(finish)
        if models and not self.sent.models_done:
            self._send_models(finish)

    def _describe(self) -> None:
        params = {mlflow_key(k): str(v)[:PARAM_LENGTH] for k, v in self.start["params"].items()}
        log_params(self.store, self.sent.run, params)
        tags = [RunTag(mlflow_key(key), value) for key, value in self.tags.items()]
        self.client.log_batch(self.sent.run, tags=tags)
        if inputs := datasets(self.start):
            self.client.log_inputs(self.sent.run, inputs)
        with _runs_lock(self.root):
            parent = execution_run(self.store, self.root, self.start["execution"], self.start)
            compare_params(self.store, parent, self.start["stage"], params)
        self.sent.described = True
        self._note()

    def _send_metrics(self, curve: Curve) -> None:
        """Send the complete lines after the noted offset that no loss of power can take away."""
        path = self.folder / f"{curve}.jsonl"
        if not path.exists() or (size := path.stat().st_size) <= getattr(self.sent, curve):
            return
        flush(path)
        batch: list[Metric] = []
        with path.open("rb") as lines:
            lines.seek(getattr(self.sent, curve))
            for line in lines:
                if not line.endswith(b"\n") or getattr(self.sent, curve) + len(line) > size:
                    break
                new = points(json.loads(line))
                if batch and len(batch) + len(new) > METRICS_PER_BATCH:
                    self._send_batch(batch)
                    batch = []
                batch += new
                setattr(self.sent, curve, getattr(self.sent, curve) + len(line))
        if batch:
            self._send_batch(batch)

    def _send_batch(self, batch: list[Metric]) -> None:
        self.client.log_batch(self.sent.run, metrics=batch)
        self._note()

    def _finish(self, finish: Mapping[str, Any]) -> None:
        """Final metrics, small artifacts and the status; models follow."""
        ended, status = finish["ended_ms"], finish["status"]
        finals = finish["metrics"].items()
        step = last_step(self.folder / "metrics.jsonl")
        own = [Metric(mlflow_key(key), value, ended, step) for key, value in finals]
        for first in range(0, len(own), METRICS_PER_BATCH):
            self.client.log_batch(self.sent.run, metrics=own[first : first + METRICS_PER_BATCH])
        for output in finish["outputs"]:
            if output["kind"] == "artifact" and (source := self._source(output)):
                self._send_artifact(source)
        self._describe_end(finish.get("message", ""))
        self.client.set_terminated(self.sent.run, status, ended)
        self.client.set_terminated(self._parent(), status, ended)
        self.sent.status, self.sent.ended_ms = status, ended
        self.sent.models_done = all(entry["kind"] == "artifact" for entry in finish["outputs"])
        self._note()
        self._drop_links()

    def _describe_end(self, message: str) -> None:
        """Set the run's description to what went wrong; remove it if a later attempt succeeds."""
        if message:
            self.client.set_tag(self.sent.run, MLFLOW_RUN_NOTE, message[:PARAM_LENGTH])
        elif MLFLOW_RUN_NOTE in self.client.get_run(self.sent.run).data.tags:
            self.client.delete_tag(self.sent.run, MLFLOW_RUN_NOTE)

    def _source(self, output: Mapping[str, str]) -> Path | None:
        """Where an output still exists; None if it is gone, which the run's tag then records.

        The link in the spool is deleted once a store has the output. Another store gets the
        published output itself, provided that this run made it. One that the run has in MLflow,
        where the note of that was lost, is not gone.
        """
        if (kept := self.folder / output["kept"]).exists():
            return kept
        stage, published = self.start["stage"], self.root / output["path"]
        locked = read_lock(self.root).get(stage)
        ours = locked is not None and run_behind(self.root, stage, locked) == self.folder
        if ours and published.exists():
            return published
        there = self.client.list_artifacts(self.sent.run)
        if output["kind"] == "artifact" and kept.name in {one.path for one in there}:
            return None
        tags = self.client.get_run(self.sent.run).data.tags
        gone = dict.fromkeys([*tags.get(GONE, "").splitlines(), output["path"]])
        self.client.set_tag(self.sent.run, GONE, "\n".join(gone))
        return None

    def _send_artifact(self, path: Path) -> None:
        if path.is_dir():
            self.client.log_artifacts(self.sent.run, str(path), artifact_path=path.name)
            if (samples := path / SAMPLES).exists():
                log_samples(self.client, self.sent.run, samples)
        else:
            self.client.log_artifact(self.sent.run, str(path))

    def _send_models(self, finish: Mapping[str, Any]) -> None:
        for output in finish["outputs"]:
            path, kind = output["path"], output["kind"]
            if kind == "artifact" or path in self.sent.models:
                continue
            tags = {"rlhf.output": path, "rlhf.stage": self.start["stage"]}
            model = finished_model(self.store, self.sent.run, path)
            if model is None and (folder := self._source(output)) is not None:
                model = log_model(self.store, self.sent.run, kind, folder, tags)
            if model is not None:
                self.sent.models[path] = model
                self._note()
        self.sent.models_done = True
        self._note()
        self._drop_links()

    def _drop_links(self) -> None:
        """Delete the links to the outputs once nothing is left to send."""
        if self.sent.models_done:
            shutil.rmtree(self.folder / "outputs", ignore_errors=True)

    def _set_status(self, status: str) -> None:
        """Report that the stage is running (again), or that it was killed."""
        if self.sent.status == status:
            return
        for run in (self.sent.run, self._parent()):
            if status == "RUNNING":
                self.client.update_run(run, status=status)
            else:
                self.client.set_terminated(run, status)
        self.sent.status = status
        self._note()

    def _parent(self) -> str:
        execution = self.start["execution"]
        return str(execution_run(self.store, self.root, execution, self.start).info.run_id)

    def _note(self) -> None:
        save_sent(self.folder, self.sent)


@contextmanager
def _runs_lock(root: Path) -> Iterator[None]:
    """Keeps processes that ship different spools from creating the same parent run twice."""
    with held(root / ".work" / "runs.lock"):
        yield


@contextmanager
def named_errors() -> Iterator[None]:
    """Raises a `TrackingError` for whatever MLflow, the network or a disk says."""
    try:
        yield
    except MlflowException as error:
        raise TrackingError(str(error), refused=error.error_code in REFUSALS) from error
    except (requests.RequestException, SQLAlchemyError, ConnectionError) as error:
        raise TrackingError(str(error), refused=False) from error
    except OSError as error:  # an artifact that cannot be read or written
        raise TrackingError(str(error), refused=True) from error
