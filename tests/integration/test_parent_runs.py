"""What MLflow shows of an execution as a whole: name, parameters, status, end, and their page."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tasks.params.loading import Params
from tasks.tracking.execution_record import record_end, record_start
from tasks.tracking.shipping import ship_all, tracking_uri
from tasks.tracking.view import runs_page
from tests.git_command import git
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.parent_world import (  # noqa: F401
    REPOSITORY,
    child,
    params_fixture,
    parents,
    results,
    root_fixture,
    today,
)


def test_the_printed_address_opens_the_runs_with_their_results_as_columns(root: Path) -> None:
    client = MlflowClient(tracking_uri(root))
    page = runs_page("http://127.0.0.1:5000", root)
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    assert experiment is not None
    start = f"http://127.0.0.1:5000/#/experiments/{experiment.experiment_id}/runs?"
    assert page.startswith(f"{start}workflowType=machine_learning&viewStateShareKey=")
    view = json.loads(experiment.tags[f"mlflow.sharedViewState.{page.rpartition('=')[2]}"])
    # The names that `record_end` logs, in MLflow's spelling of columns.
    logged = ("gold", "win_rate_vs_sft", "kl", "reward_accuracy", "test/gold", "seconds")
    columns = [f"metrics.`{key}`" for key in logged]
    assert view["selectedColumns"] == [*columns, "params.`ppo.kl_coef`"]


def test_an_execution_that_did_not_finish_says_why_and_has_no_results(
    root: Path, params: Params
) -> None:
    record_start(root, "blocked", params)
    record_end(
        root, "blocked", status="FAILED", message="validate@r1 was blocked", seconds=3.0,
        results=results(4.5, 6.25),
    )  # fmt: skip
    ship_all(root)
    (parent,) = parents()
    assert parent.info.status == "FAILED"
    assert parent.data.metrics == {"seconds": 3.0}
    assert parent.data.tags["mlflow.note.content"] == "validate@r1 was blocked"

    record_end(root, "blocked", status="FINISHED", message="", seconds=9.0, results=results(4.5))
    ship_all(root)
    (parent,) = parents()
    assert (parent.info.status, parent.data.metrics["seconds"]) == ("FINISHED", 9.0)
    assert parent.data.tags["mlflow.note.content"] == ""


def test_no_two_runs_have_the_same_name_and_a_dirty_checkout_is_marked(
    root: Path, params: Params
) -> None:
    commit = git(root, "rev-parse", "HEAD")[:7]
    first = child_after_start(root, "run-1", params)
    second = child_after_start(root, "run-2", params)
    (root / "code.py").write_text("changed")
    third = child_after_start(root, "run-3", params)
    runs = parents()
    days = [today(run) for run in runs]
    again = " #2" if days[0] == days[1] else ""  # Midnight may have passed.
    names = [f"default, 3 rounds, {commit}{end}" for end in ("", again, "-dirty")]
    assert [run.info.run_name for run in runs] == list(map(" ".join, zip(days, names, strict=True)))
    assert [run.data.tags["git.dirty"] for run in runs] == ["false", "false", "true"]
    for run, name in zip((first, second, third), names, strict=True):
        assert run.info.run_name == f"{today(run)} r1 ppo {name}"


REPORT = """
import json, sys
from tasks.running.runner import run_stage

def run(stage):
    page = stage.staging.file("reports/index.html")
    page.write_text("<p>the report</p>")
    stage.staging.file("reports/results.json").write_text(json.dumps({results}))
    if {interrupted}:
        raise KeyboardInterrupt

sys.exit(run_stage("report", run, arguments=[]))
"""


def report_stage(root: Path, *, interrupted: bool = False) -> int:
    """The exit code of a stage that writes the results, as a bare `dvc repro` starts it."""
    (root / "params.yaml").write_text((REPOSITORY / "params.yaml").read_text())
    made = json.dumps(results(4.5, 6.25, test="r1")).replace("null", "None")
    script = root.parent / f"{root.name}.py"
    script.write_text(REPORT.replace("{results}", made).replace("{interrupted}", str(interrupted)))
    drivers = {"RLHF_SHIPPER", "RLHF_EXECUTION"}
    environment = {key: value for key, value in os.environ.items() if key not in drivers}
    environment |= {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, script], cwd=root, env=environment, check=False
    ).returncode


@pytest.mark.slow
@pytest.mark.long
def test_a_stage_waits_for_a_local_store_that_is_slow(root: Path) -> None:
    """No run is left as running for want of a few seconds: nobody else ends it (`dvc exp run`)."""
    database = Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///"))
    with (database.parent / "create.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(15.0, lock.close)
        release.start()
        assert report_stage(root) == 0
        release.join()
    (parent,) = parents()
    assert parent.info.status == "FINISHED"


@pytest.mark.long
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_bare_dvc_repro_that_came_to_its_report_has_the_results_too(
    root: Path, interrupted: bool
) -> None:
    """Nobody but the last stage itself is there to say so: no driver, no `make sync`."""
    assert report_stage(root, interrupted=interrupted) == (143 if interrupted else 0)
    (parent,) = parents()
    metrics = dict(parent.data.metrics)
    if interrupted:
        assert (parent.info.status, metrics) == ("KILLED", {})
        return
    assert parent.info.status == "FINISHED"
    assert 0 < metrics.pop("seconds") < 300
    assert metrics == {
        "gold": 6.25, "kl": 1.5, "reward_accuracy": 0.75,
        "test/gold": 7.25, "test/win_rate_vs_sft": 0.9,
    }  # fmt: skip
    client = MlflowClient(tracking_uri(root))
    page = client.download_artifacts(parent.info.run_id, "report.html")
    assert Path(page).read_text() == "<p>the report</p>"


def child_after_start(root: Path, execution: str, params: Params) -> Run:
    record_start(root, execution, params)
    return child(root, execution, params.ppo.kl_coef)


def test_a_parent_keeps_the_params_it_started_with_and_says_which_stage_had_others(
    root: Path, params: Params
) -> None:
    record_start(root, "edited", replace(params, ppo=replace(params.ppo, kl_coef=0.06)))
    child(root, "edited", 0.06)
    assert "params.changed" not in parents()[0].data.tags
    # params.yaml was edited meanwhile.
    record_start(root, "edited", replace(params, ppo=replace(params.ppo, kl_coef=0.07)))
    late = child(root, "edited", 0.07, stage="ppo@r2")
    (parent,) = parents()
    assert late.data.params["ppo.kl_coef"] == "0.07"
    assert parent.data.params["ppo.kl_coef"] == "0.06"
    assert parent.data.tags["params.changed"] == "ppo@r2: ppo.kl_coef 0.07 (started with 0.06)"
