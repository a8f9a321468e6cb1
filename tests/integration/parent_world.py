"""A checkout whose executions go to one MLflow store, their results, and their parents there."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tasks.params.loading import Params, load_params
from tasks.tracking.shipping import ship_all, tracking_uri
from tasks.tracking.spool import RunStart, open_spool
from tests.git_command import git

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(name="root")
def root_fixture(experiment: Path) -> Path:
    git(experiment, "init", "--quiet")
    (experiment / ".gitignore").write_text(".work\nreports\n")
    (experiment / "code.py").write_text("")
    git(experiment, "add", "--all")
    git(experiment, "commit", "--quiet", "-m", "one")
    (experiment / "reports").mkdir()
    (experiment / "reports" / "index.html").write_text("<p>the report</p>")
    return experiment


@pytest.fixture(name="params", scope="module")
def params_fixture() -> Params:
    return load_params(REPOSITORY / "params.yaml")


def estimate(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 1, "high": mean + 1, "n": 8}


def results(*gold: float, test: str | None = None) -> dict[str, Any]:
    names = ["sft", "r1", "r2", "r3"][: len(gold)]
    return {
        "policies": [
            {"name": name, "gold": estimate(value), "win_rate_vs_sft": None, "kl": estimate(1.5)}
            for name, value in zip(names, gold, strict=True)
        ],
        "reward_models": [{"round": "r1", "accuracy_after": estimate(0.75)}],
        "test": test and {"policy": test, "gold": estimate(7.25), "win_rate_vs_sft": estimate(0.9)},
    }


def parents() -> list[Run]:
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    return [run for run in runs if "rlhf.execution" in run.data.tags]


def today(run: Run) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(run.info.start_time / 1000))


def child(root: Path, execution: str, kl_coef: float, stage: str = "ppo@r1") -> Run:
    spool = open_spool(root, RunStart(stage, execution, {"ppo.kl_coef": kl_coef}, {}, {}))
    spool.finish("FINISHED", {}, [])
    assert {result.state for result in ship_all(root)} == {"complete"}
    sent = json.loads((spool.folder / "sent.json").read_text())
    return MlflowClient(tracking_uri(root)).get_run(sent["run"])
