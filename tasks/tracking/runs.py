"""The runs in MLflow: a parent for each execution of the pipeline, a child for each of its stages.

Runs are found by their tags (`rlhf.execution` on the parent, `rlhf.spool` on the child), so that a
run that was created but not noted (a crash, a lost reply) is found instead of created twice. A
parent is named by its date and how its execution differs from the defaults
(`tasks.tracking.run_names`), a child also by its round and stage: `2026-11-22 r2 ppo kl 0.10, 2
rounds, 6cb38ae`. So names sort by date, and all in a legend or list are distinct.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE

from tasks.tracking.entities import data_set
from tasks.tracking.sent import Sent, end_is_new, rounds_are_new, save_sent
from tasks.tracking.spool import EXECUTIONS_FOLDER
from tasks.tracking.store import Store, find_run, mlflow_key
from tasks.workspace.files import read_json

METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
PARAM_LENGTH = 6000
CHANGED = "params.changed"
"""Tag of an execution some of whose stages ran with other parameters than it started with."""


def execution_run(store: Store, root: Path, execution: str, started: Mapping[str, Any]) -> Run:
    """The parent run of an execution, created if there is none.

    Args:
        store: where to look.
        root: the workspace, with the execution's start.json.
        execution: its id.
        started: `started_ms` and `tags` of the first stage; they describe an execution that an
            older version of the project left without a start.json.
    """
    if (run := find_run(store, "rlhf.execution", execution)) is not None:
        return run
    record = read_json(root / EXECUTIONS_FOLDER / execution / "start.json")
    described = record or {**started, "name": execution, "params": {}}
    tags = {"rlhf.execution": execution}
    tags |= {
        key: value
        for key, value in described["tags"].items()
        if value and key.startswith(("git.", "prefect."))
    }
    if commit := tags.get("git.commit"):
        tags["mlflow.source.git.commit"] = commit
    run = store.client.create_run(
        store.experiment,
        start_time=int(described["started_ms"]),
        run_name=_unused(store, f"{_day(described['started_ms'])} {described['name']}"),
        tags=tags,
    )
    log_params(store, run.info.run_id, described["params"])
    return store.client.get_run(run.info.run_id)


def stage_run(store: Store, root: Path, start: Mapping[str, Any], tags: Mapping[str, str]) -> Run:
    """The child run of a spool (`start` is its start.json), created if there is none."""
    spool = f"{start['stage']}/{start['id']}/{start['execution']}"
    if (run := find_run(store, "rlhf.spool", spool)) is not None:
        return run
    parent = execution_run(store, root, start["execution"], start)
    stage, _, round_key = start["stage"].partition("@")
    whole = parent.info.run_name.removeprefix(f"{_day(parent.info.start_time)} ")
    named = (_day(start["started_ms"]), round_key, stage, whole)
    return store.client.create_run(
        store.experiment,
        start_time=int(start["started_ms"]),
        run_name=" ".join(part for part in named if part),
        tags={
            **tags,
            "rlhf.spool": spool,
            "rlhf.stage": start["stage"],
            MLFLOW_PARENT_RUN_ID: parent.info.run_id,
        },
    )


def is_deleted(store: Store, run: str) -> bool:
    """Whether somebody has removed a run, which MLflow then accepts nothing for."""
    try:
        return bool(store.client.get_run(run).info.lifecycle_stage == LifecycleStage.DELETED)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return True  # By `mlflow gc`.


def log_params(store: Store, run: str, params: Mapping[str, object]) -> None:
    """Log parameters, in batches that MLflow accepts."""
    entries = [
        Param(mlflow_key(key), str(value)[:PARAM_LENGTH]) for key, value in sorted(params.items())
    ]
    for first in range(0, len(entries), PARAMS_PER_BATCH):
        store.client.log_batch(run, params=entries[first : first + PARAMS_PER_BATCH])


def compare_params(store: Store, parent: Run, stage: str, params: Mapping[str, str]) -> None:
    """Record on the parent which of a stage's parameters differ from those it started with.

    Parameters that the parent does not have are added, so that executions can be compared by them.
    """
    known = parent.data.params
    other = [
        f"{stage}: {key} {value} (started with {known[key]})"
        for key, value in sorted(params.items())
        if key in known and known[key] != value
    ]
    if other:
        before = parent.data.tags.get(CHANGED, "").splitlines()
        lines = dict.fromkeys([*before, *other])
        store.client.set_tag(parent.info.run_id, CHANGED, "\n".join(lines))
    missing = {key: value for key, value in params.items() if key not in known}
    log_params(store, parent.info.run_id, missing)


def send_news(store: Store, root: Path, folder: Path, sent: Sent) -> None:
    """Send what is new in an execution's rounds.json and end.json to its parent run."""
    if rounds_are_new(folder, sent):
        _send_rounds(store, root, folder, sent)
    if end_is_new(folder, sent):
        _send_end(store, root, folder, sent)


def _send_rounds(store: Store, root: Path, folder: Path, sent: Sent) -> None:
    start, rounds = read_json(folder / "start.json"), read_json(folder / "rounds.json")
    assert start is not None
    assert rounds is not None
    run = execution_run(store, root, start["execution"], start).info.run_id
    _log_new_metrics(store, run, _metrics(rounds["points"], int(start["started_ms"])))
    sent.run, sent.rounds_ms = run, rounds["recorded_ms"]
    save_sent(folder, sent)


def _send_end(store: Store, root: Path, folder: Path, sent: Sent) -> None:
    start, end = read_json(folder / "start.json"), read_json(folder / "end.json")
    assert start is not None
    assert end is not None
    run = execution_run(store, root, start["execution"], start).info.run_id
    metrics = _metrics(
        [point for point in end["points"] if point["key"] != "seconds"], int(start["started_ms"])
    )
    metrics += [
        Metric(point["key"], point["value"], int(end["ended_ms"]), 0)
        for point in end["points"]
        if point["key"] == "seconds"
    ]
    # The description: empty after success, even if an earlier attempt failed.
    tags = [RunTag(MLFLOW_RUN_NOTE, end["message"][:PARAM_LENGTH])]
    _log_new_metrics(store, run, metrics)
    store.client.log_batch(run, tags=tags)
    if inputs := [data_set(**entry) for entry in end.get("inputs", [])]:
        store.client.log_inputs(run, inputs)
    if (folder / "report.html").exists():
        store.client.log_artifact(run, str(folder / "report.html"))
    store.client.set_terminated(run, end["status"], int(end["ended_ms"]))
    sent.run, sent.ended_ms = run, end["ended_ms"]
    save_sent(folder, sent)


def _metrics(points: Sequence[Mapping[str, Any]], started_ms: int) -> list[Metric]:
    """Timestamps do not depend on when they are sent, so a point sent twice is the same point."""
    return [
        Metric(mlflow_key(point["key"]), point["value"], started_ms + point["step"], point["step"])
        for point in points
    ]


def _log_new_metrics(store: Store, run: str, metrics: Sequence[Metric]) -> None:
    """Log the points that the run does not have yet.

    Each round's records hold the curves of all rounds before it. MLflow drops known points, but
    looks for each of them first: with twelve rounds for a minute, with more for hours.

    An execution that goes on may come to other numbers. Of two values of one step and time MLflow
    shows the larger one as the last, so the new one is later than the one before it.
    """
    keys = dict.fromkeys(metric.key for metric in metrics)
    known = {
        (key, one.step): one
        for key in keys
        for one in sorted(store.client.get_metric_history(run, key), key=_as_mlflow_orders)
    }
    new = []
    for metric in metrics:
        before = known.get((metric.key, metric.step))
        if before is None:
            new.append(metric)
        elif before.value != metric.value:
            later = max(metric.timestamp, before.timestamp + 1)
            new.append(Metric(metric.key, metric.value, later, metric.step))
    _log_metrics(store, run, new)


def _as_mlflow_orders(metric: Metric) -> tuple[int, int, float]:
    return metric.step, metric.timestamp, metric.value


def _log_metrics(store: Store, run: str, metrics: Sequence[Metric]) -> None:
    for first in range(0, len(metrics), METRICS_PER_BATCH):
        store.client.log_batch(run, metrics=metrics[first : first + METRICS_PER_BATCH])


def _day(milliseconds: int | str) -> str:
    """The date in UTC, so that it does not depend on who sends."""
    return f"{datetime.fromtimestamp(int(milliseconds) / 1000, UTC):%Y-%m-%d}"


def _unused(store: Store, name: str) -> str:
    """`name`, with a number if a parent run already has it: legends show names only."""
    quoted = name.replace("'", "")
    runs = store.client.search_runs(
        [store.experiment], filter_string=f"attributes.run_name LIKE '{quoted}%'", max_results=500
    )
    taken = {run.info.run_name for run in runs}
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} #{number}"
    return free
