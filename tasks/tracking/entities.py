"""A spool's content in MLflow's terms: tags, data set inputs, points of curves."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

from tasks.tracking.store import mlflow_key


def run_tags(start: Mapping[str, Any]) -> dict[str, str]:
    """All tags of a stage's run: its own, its inputs' hashes, and what MLflow's UI looks for."""
    stage, tags = start["stage"], {key: str(value) for key, value in start["tags"].items()}
    hashes = {f"dvc.in.{path}": digest for path, digest in start["inputs"].items()}
    source = {"mlflow.source.name": f"tasks.{stage.split('@')[0]}", "mlflow.source.type": "LOCAL"}
    if "git.commit" in tags:
        source["mlflow.source.git.commit"] = tags["git.commit"]
    return {**source, **hashes, **tags, "dvc.stage": stage}


def datasets(start: Mapping[str, Any]) -> list[DatasetInput]:
    """The inputs of a stage below data/."""
    return [
        data_set(path, digest, start["stage"])
        for path, digest in sorted(start["inputs"].items())
        if path.startswith("data/") and digest
    ]


def data_set(path: str, digest: str, context: str) -> DatasetInput:
    """A file or folder, with DVC's hash as its digest and, as its context, who read it.

    Not `mlflow.data.from_pandas`: its digest sees the first 10,000 rows only.
    """
    return DatasetInput(
        Dataset(path, digest, source_type="local", source=json.dumps({"uri": path})),
        tags=[InputTag("mlflow.data.context", context)],
    )


def points(row: Mapping[str, Any]) -> list[Metric]:
    """The values of a line of metrics.jsonl."""
    return [
        Metric(mlflow_key(key), value, row["time"], row["step"])
        for key, value in row["metrics"].items()
    ]


def last_step(metrics: Path) -> int:
    """The largest step in metrics.jsonl, 0 where nothing was logged."""
    if not metrics.exists():
        return 0
    lines = metrics.read_bytes().splitlines()
    return max((int(json.loads(line)["step"]) for line in lines), default=0)
