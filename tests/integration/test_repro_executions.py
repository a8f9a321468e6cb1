"""What counts as one execution of the driver, and the time and the run in MLflow that it has."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.workspace.execution import begin_execution, save_execution
from tests.integration.repro_world import (  # noqa: F401
    drive,
    environment,
    root_fixture,
    template_fixture,
)

pytestmark = pytest.mark.long


def test_a_run_that_dvc_restores_as_a_whole_has_its_own_run_in_mlflow(root: Path) -> None:
    text = (root / "params.yaml").read_text()
    for kl_coef in ("0.1", "0.2", "0.1"):
        (root / "params.yaml").write_text(text.replace("ppo: {}", f"ppo: {{kl_coef: {kl_coef}}}"))
        code, out, err = drive(root)
        assert code == 0, err
    assert "Stage 'evaluate@r1' is cached - skipping run" in out

    client = MlflowClient(f"sqlite:///{root}/.work/mlflow/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "rlhf-rounds"]
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    assert [run.data.params["ppo.kl_coef"] for run in runs] == ["0.1", "0.2", "0.1"]
    assert [run.data.metrics["gold"] for run in runs] == [8.25] * 3
    assert all(run.info.status == "FINISHED" for run in runs)
    assert len({run.info.run_name for run in runs}) == 3


@pytest.mark.parametrize(
    ("how", "stopped", "status"), [("blocked", 4, "FAILED"), ("waiting", 5, "SCHEDULED")]
)
def test_a_run_that_stops_shows_the_rounds_before_in_mlflow(
    root: Path, how: str, stopped: int, status: str
) -> None:
    text = (root / "params.yaml").read_text()
    first = text[text.index("  r1:") : text.index("final:")]
    second = first.replace("r1:", "r2:")
    (root / "params.yaml").write_text(
        text.replace(first, first + second).replace("final: r1", "final: r2")
    )
    # Of an earlier execution.
    (root / "results/evaluate/r2").mkdir(parents=True)
    (root / "results/evaluate/r2/metrics.json").write_text('{"gold": {"mean": 9.75}}')
    (root / "wanted").write_text(f"{how} evaluate@r2")
    code, _, err = drive(root)
    assert code == stopped, err
    client = MlflowClient(f"sqlite:///{root}/.work/mlflow/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "rlhf-rounds"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == status
    curve = client.get_metric_history(run.info.run_id, "gold")
    assert [(point.step, point.value) for point in curve] == [(0, 4.5), (1, 8.25)]


def test_an_execution_continues_until_it_reaches_its_end_or_its_params_change(
    tmp_path: Path,
) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("ppo: {kl_coef: 0.05}\n")
    first = begin_execution(tmp_path)
    assert begin_execution(tmp_path).id == first.id
    params.write_text("ppo: {kl_coef: 0.0}\n")
    second = begin_execution(tmp_path)
    assert second.id != first.id
    second.unfinished = False
    save_execution(tmp_path, second)
    assert begin_execution(tmp_path).id != second.id


DIES = """
import os, sys
def heard(event, found):
    if event == "open" and "/.end.json." in str(found[0]):
        os.kill(os.getpid(), int(os.environ["DIES_BY"]))
sys.addaudithook(heard)
"""
"""Ends a driver whose stages have all run, before it has recorded that."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_dies_as_its_last_stage_has_ended_has_its_results_in_mlflow_after_the_next(
    root: Path, number: signal.Signals
) -> None:
    (root / "sitecustomize.py").write_text(DIES)
    path = f"{root}{os.pathsep}{environment()['PYTHONPATH']}"
    died = subprocess.run(
        [sys.executable, "-m", "tasks.repro"],
        cwd=root, capture_output=True, check=False,
        env={**environment(), "PYTHONPATH": path, "DIES_BY": str(int(number))},
    )  # fmt: skip
    assert died.returncode != 0
    assert "evaluate@r1" in (root / "dvc.lock").read_text()

    code, _, err = drive(root)

    assert code == 0, err
    client = MlflowClient(f"sqlite:///{root}/.work/mlflow/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "rlhf-rounds"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.metrics["gold"]) == ("FINISHED", 8.25)
    assert drive(root)[1].startswith("Nothing to do: ")


def test_a_run_of_changed_params_names_the_time_of_the_stages_that_were_done(root: Path) -> None:
    """The stages take 0.5 s each, as they say."""
    code, out, err = drive(root)
    assert code == 0, err
    assert "earlier runs" not in out
    params = root / "params.yaml"
    params.write_text(params.read_text().replace("ppo: {}", "ppo: {kl_coef: 0.2}"))
    code, out, err = drive(root)
    assert code == 0, err
    assert "not counting 1 stage that earlier runs had done in 0.5 s" in " ".join(out.split())
    summary = json.loads((root / "reports" / "summary.json").read_text())
    assert summary["seconds"]["earlier"] == {"baseline": 0.5}


def test_a_run_that_stops_names_no_time_of_earlier_runs(root: Path) -> None:
    """Its second round is that of other inputs, and no part of what it shows."""
    params = root / "params.yaml"
    second = """\
  r2:
    {policy: models/rounds/r1/policy, start: models/rounds/r1/policy, reward_model: models/sft,
     preferences: data/prepared/preferences}
"""
    params.write_text(params.read_text().replace("final: r1\n", f"{second}final: r2\n"))
    code, _, err = drive(root)
    assert code == 0, err
    params.write_text(params.read_text().replace("ppo: {}", "ppo: {kl_coef: 0.2}"))
    (root / "wanted").write_text("blocked evaluate@r1")
    assert drive(root)[0] == 4
    summary = json.loads((root / "reports" / "summary.json").read_text())
    assert set(summary["seconds"]["stages"]) == {"baseline", "evaluate@r1"}
    assert "earlier" not in summary["seconds"]


def test_a_run_that_waits_leads_to_no_report_of_an_earlier_one(root: Path) -> None:
    pipeline = root / "dvc.yaml"
    report = """\
  report:
    {cmd: exec python stage.py report, deps: [results/evaluate], outs: [results/report]}
"""
    pipeline.write_text(pipeline.read_text() + report)
    assert "reports/index.html" in drive(root)[1]
    (root / "reports/index.html").touch()
    params = root / "params.yaml"
    params.write_text(params.read_text().replace("ppo: {}", "ppo: {kl_coef: 0.2}"))
    (root / "wanted").write_text("waiting evaluate@r1")
    code, out, _ = drive(root)
    assert (code, "reports/index.html" in out, "reports/summary.json" in out) == (5, False, True)
    assert "are of an earlier run" in (root / "reports/run.html").read_text()


def test_stages_that_ended_before_the_driver_was_killed_count_for_the_run(root: Path) -> None:
    (root / "wanted").write_text("blocked evaluate@r1")
    assert drive(root)[0] == 4
    for name, seconds in (("baseline", 700.0), ("evaluate@r1", 50.0)):
        outcome = root / ".work" / name / "outcome.json"
        outcome.write_text(json.dumps(json.loads(outcome.read_text()) | {"seconds": seconds}))
    execution = root / ".work/execution.json"
    execution.write_text(json.dumps(json.loads(execution.read_text()) | {"seconds": 0.0}))
    assert drive(root)[0] == 4
    assert json.loads(execution.read_text())["seconds"] > 750


def test_an_older_commit_that_is_checked_out_is_not_taken_for_the_last_run(root: Path) -> None:
    """As git and DVC bring it: params, dvc.lock and outputs of the older, `.work` of the newer."""
    params, lock = root / "params.yaml", root / "dvc.lock"
    older = params.read_text()
    assert drive(root)[0] == 0
    older_lock = lock.read_text()
    params.write_text(older.replace("ppo: {}", "ppo: {kl_coef: 0.2}"))
    assert drive(root)[0] == 0
    newer = execution_id(root)
    params.write_text(older)
    lock.write_text(older_lock)

    code, out, err = drive(root)

    assert (code, out.splitlines()[0]) == (0, "Nothing to do: all stages are up to date."), err
    assert execution_id(root) != newer
    summary = json.loads((root / "reports/summary.json").read_text())
    assert summary["seconds"]["stages"] == {}
    assert newer not in (root / "reports/run.html").read_text()
    client = MlflowClient(f"sqlite:///{root}/.work/mlflow/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "rlhf-rounds"]
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    coefficients = [run.data.params["ppo.kl_coef"] for run in runs]
    assert coefficients[1:] == ["0.2", coefficients[0]]

    drive(root)
    assert len(client.search_runs([experiment.experiment_id])) == 3, "the same results again"


def execution_id(root: Path) -> str:
    return str(json.loads((root / ".work/execution.json").read_text())["id"])
