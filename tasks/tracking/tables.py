"""Samples as a table that MLflow's page shows, alone and beside those of other runs."""

import json
from pathlib import Path

from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

SAMPLES = "samples.jsonl"
"""In the folder of results of a stage."""
TABLE = "samples.json"


def log_samples(client: MlflowClient, run: str, path: Path) -> None:
    """Log the rows of a JSON Lines file; a second call replaces them.

    `MlflowClient.log_table` would append.
    """
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    data = [[row.get(column) for column in columns] for row in rows]
    client.log_dict(run, {"columns": columns, "data": data}, TABLE)
    listed = json.dumps([{"path": TABLE, "type": "table"}])
    client.set_tag(run, MLFLOW_LOGGED_ARTIFACTS, listed)
