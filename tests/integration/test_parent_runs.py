"""What MLflow shows of an execution as a whole: name, parameters, results, seconds, report."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tasks.params.loading import Params, load_params
from tasks.tracking.execution_record import record_end, record_rounds, record_start
from tasks.tracking.shipping import ship_all, tracking_uri
from tasks.tracking.spool import RunStart, open_spool
from tasks.tracking.view import runs_page

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text(".work\nreports\n")
    (tmp_path / "code.py").write_text("")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "index.html").write_text("<p>the report</p>")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def params() -> Params:
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


def test_an_execution_of_which_no_stage_ran_has_a_parent_with_results_and_report(
    root: Path, params: Params
) -> None:
    params = replace(params, ppo=replace(params.ppo, kl_coef=0.1))
    flow = {"prefect.flow_run": "5d7e", "prefect.page": "http://127.0.0.1:4200/runs/5d7e"}
    record_start(root, "20260314-run", params, flow)
    record_end(
        root, "20260314-run", status="FINISHED", message="", seconds=12.5,
        results=results(4.5, 6.25, 8.0, test="r1"),
    )  # fmt: skip
    for _ in range(2):
        assert [result.state for result in ship_all(root)] == ["complete"]

    (parent,) = parents()
    commit = git(root, "rev-parse", "HEAD")[:7]
    assert parent.info.run_name == f"{today(parent)} kl 0.10, 3 rounds, {commit}"
    assert parent.info.status == "FINISHED"
    assert parent.data.params["ppo.kl_coef"] == "0.1"
    assert parent.data.tags["git.dirty"] == "false"
    assert parent.data.tags["git.branch"] == git(root, "branch", "--show-current")
    assert flow.items() <= parent.data.tags.items()
    # `final` is r1: the last value of the curve, which tables show, is r1's.
    assert parent.data.metrics == {
        "gold": 6.25, "kl": 1.5, "reward_accuracy": 0.75, "seconds": 12.5,
        "test/gold": 7.25, "test/win_rate_vs_sft": 0.9,
    }  # fmt: skip
    client = MlflowClient(tracking_uri(root))
    curve = client.get_metric_history(parent.info.run_id, "gold")
    assert [(point.step, point.value) for point in curve] == [(0, 4.5), (1, 6.25)]
    page = client.download_artifacts(parent.info.run_id, "report.html")
    assert Path(page).read_text() == "<p>the report</p>"


def write_history(root: Path, stage: str, key: str, column: str, values: list[float]) -> None:
    folder = root / "results" / stage / key
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{number},{value},7\n" for number, value in enumerate(values, start=1))
    (folder / "history.csv").write_text(f"step,{column},other\n{rows}")


def test_a_parent_has_the_curves_of_all_rounds_one_after_the_other(
    root: Path, params: Params
) -> None:
    write_history(root, "ppo", "r1", "objective/kl", [0.5, 1.5])
    write_history(root, "ppo", "r2", "objective/kl", [2.5, float("nan"), 3.5])
    write_history(root, "reward", "r1", "loss", [0.75])
    # Of an earlier execution that had more rounds.
    write_history(root, "ppo", "r3", "objective/kl", [9.0])
    made = results(4.5, 6.25, 8.0, test="r1")
    made["reward_models"].append({"round": "r2"})
    record_start(root, "curves", params)
    record_end(root, "curves", status="FINISHED", message="", seconds=1.0, results=made)
    for _ in range(2):
        ship_all(root)
        (root / ".work/executions/curves/sent.json").unlink()
    (parent,) = parents()
    client = MlflowClient(tracking_uri(root))
    curve = client.get_metric_history(parent.info.run_id, "ppo/objective/kl")
    assert [(one.step, one.value) for one in curve] == [(0, 0.5), (1, 1.5), (2, 2.5), (4, 3.5)]
    assert parent.data.metrics["reward/loss"] == 0.75
    assert not [key for key in parent.data.metrics if "other" in key]


def test_a_parent_has_what_its_rounds_have_come_to_before_the_execution_ends(
    root: Path, params: Params
) -> None:
    made = results(4.5, 6.25, 8.0)
    made["reward_models"].append({"round": "r2", "accuracy_after": estimate(0.5)})
    write_history(root, "ppo", "r1", "objective/kl", [0.5, 1.5])
    # Of an earlier execution, as the second round's results are: only one round has ended.
    write_history(root, "ppo", "r2", "objective/kl", [9.0])
    first = {"gold": 6.25, "kl": 1.5, "reward_accuracy": 0.75, "ppo/objective/kl": 1.5}
    record_start(root, "rounds", params)
    record_rounds(root, "rounds", ["r1"], "r2", made)
    ship_all(root)
    (parent,) = parents()
    assert parent.data.metrics == first

    # It waits for people.
    record_end(root, "rounds", status="FAILED", message="waits", seconds=3.0, results=made)
    ship_all(root)
    (parent,) = parents()
    assert (parent.info.status, parent.data.metrics) == ("FAILED", {**first, "seconds": 3.0})

    # The same execution goes on: nothing is there twice, and it has not ended again.
    client = MlflowClient(tracking_uri(root))
    client.update_run(parent.info.run_id, status="RUNNING")
    write_history(root, "ppo", "r2", "objective/kl", [2.5])
    record_rounds(root, "rounds", ["r1", "r2"], "r1", made)
    for _ in range(2):
        ship_all(root)
    (parent,) = parents()
    assert parent.info.status == "RUNNING"
    curve = client.get_metric_history(parent.info.run_id, "ppo/objective/kl")
    assert [(one.step, one.value) for one in curve] == [(0, 0.5), (1, 1.5), (2, 2.5)]
    # The last value is that of the final policy.
    assert parent.data.metrics["gold"] == 6.25
    gold = client.get_metric_history(parent.info.run_id, "gold")
    assert [(one.step, one.value) for one in gold] == [(0, 4.5), (1, 6.25)]


LOCK = """
schema: '2.0'
stages:
  prepare:
    deps:
    - {path: mine/pairs.jsonl, md5: 01}
    - {path: preferences/sources.py, md5: 02}
    - {path: data/withdrawn/texts.jsonl, md5: 03}
    outs:
    - {path: data/prepared, md5: 04.dir}
  sft:
    deps:
    - {path: data/prepared, md5: 04.dir}
    - {path: models/base, md5: 05.dir}
  label@r1:
    deps:
    - {path: data/support_desk/rubric.py, md5: 06}
    outs:
    - {path: data/rounds/r1/judgments.jsonl, md5: 07}
  validate@r1:
    deps:
    - {path: data/prepared, md5: 04.dir}
    - {path: data/rounds/r1/judgments.jsonl, md5: 07}
    outs:
    - {path: data/rounds/r1/preferences, md5: 08.dir}
  label@r2:
    outs:
    - {path: data/rounds/r2/judgments.jsonl, md5: 09}
  validate@r2:
    deps:
    - {path: data/rounds/r2/judgments.jsonl, md5: 09}
"""


def test_a_parent_has_the_data_that_its_stages_read_as_inputs(root: Path, params: Params) -> None:
    (root / "dvc.lock").write_text(LOCK.replace("md5: 0", "md5: a0"))
    record_start(root, "data", params)
    # Its second round has not come to a reward model: what dvc.lock says of it is older.
    record_end(root, "data", status="FINISHED", message="", seconds=1.0, results=results(4.5, 5.0))
    for _ in range(2):
        ship_all(root)
        (root / ".work/executions/data/sent.json").unlink()
    (parent,) = parents()
    found = {
        one.dataset.name: (one.dataset.digest, one.tags[0].value)
        for one in parent.inputs.dataset_inputs
    }
    assert found == {
        "mine/pairs.jsonl": ("a01", "prepare"),
        "data/prepared": ("a04.dir", "2 stages"),
        "data/rounds/r1/judgments.jsonl": ("a07", "validate"),
    }
    assert len(parent.inputs.dataset_inputs) == 3


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
    names = [run.info.run_name for run in parents()]
    day = today(first)
    assert names[0] == f"{day} default, 3 rounds, {commit}"
    assert names[1:] == [f"{names[0]} #2", f"{names[0]}-dirty"]
    assert [run.data.tags["git.dirty"] for run in parents()] == ["false", "false", "true"]
    assert [run.info.run_name for run in (first, second, third)] == [
        f"{day} r1 ppo {name.removeprefix(day).strip()}" for name in names
    ]


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
