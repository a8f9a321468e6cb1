"""MLflow after a move: to another store, of the checkout, and out of `dvc exp run --temp`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tasks.sync import main as sync_main
from tasks.tracking.shipping import ship_all, tracking_uri
from tasks.tracking.spool import Output, RunStart, open_spool
from tasks.tracking.store import connect


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "dvc.yaml").touch()
    return checkout


def finish_stages(root: Path) -> None:
    for stage in ("sft", "ppo@r1"):
        artifact = root / "results" / stage / "metrics.json"
        artifact.parent.mkdir(parents=True, exist_ok=True)
        artifact.write_text(stage)
        spool = open_spool(root, RunStart(stage, "run-1", {"run.seed": 0}, {}, {}))
        spool.log(0, {"loss": 2.0})
        spool.finish("FINISHED", {"gold": 1.5}, [Output("artifact", artifact)])


def stage_runs(uri: str) -> dict[str, Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("rlhf-rounds")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    found = [run for run in runs if "rlhf.stage" in run.data.tags]
    assert len({run.data.tags["rlhf.stage"] for run in found}) == len(found)
    return {run.data.tags["rlhf.stage"]: run for run in found}


@pytest.mark.long
def test_another_store_gets_everything_and_no_run_stays_running(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finish_stages(root)
    (root / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  ppo@r1:\n    cmd: python\n    outs:\n"
        "    - {path: results/ppo@r1, md5: feed.dir}\n"
    )
    shutil.rmtree(root / "results" / "sft")  # as after a checkout of another commit
    assert {result.state for result in ship_all(root)} == {"complete"}

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new/mlflow.db")
    monkeypatch.chdir(root)
    assert sync_main([]) == 0
    runs = stage_runs(f"sqlite:///{tmp_path}/new/mlflow.db")
    assert {stage: run.info.status for stage, run in runs.items()} == {
        "sft": "FINISHED",
        "ppo@r1": "FINISHED",
    }
    assert all(run.data.metrics == {"loss": 2.0, "gold": 1.5} for run in runs.values())
    client = MlflowClient(f"sqlite:///{tmp_path}/new/mlflow.db")
    kept = client.list_artifacts(runs["ppo@r1"].info.run_id)
    assert [entry.path for entry in kept] == ["metrics.json"]
    # What is no longer there cannot be sent; the run says so.
    assert runs["sft"].data.tags["outputs.gone"] == "results/sft/metrics.json"


def test_a_moved_checkout_takes_its_store_along(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_stages(root)
    ship_all(root)
    moved = root.with_name("moved")
    root.rename(moved)
    monkeypatch.chdir(moved)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # MLflow has set it in this process
    sent = (moved / ".work/spool/sft").glob("*/sent.json")
    before = [json.loads(path.read_text()) for path in sent]

    assert sync_main([]) == 0
    runs = stage_runs(tracking_uri(moved))
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    sent = (moved / ".work/spool/sft").glob("*/sent.json")
    assert [json.loads(path.read_text()) for path in sent] == before, "nothing is sent anew"
    store = connect(tracking_uri(moved))  # as the next stage does, or `make ui`
    client = MlflowClient(tracking_uri(moved))
    page = client.download_artifacts(runs["sft"].info.run_id, "metrics.json")
    assert Path(page).read_text() == "sft"
    new = store.client.create_run(store.experiment).info.artifact_uri
    assert new.startswith(f"{moved.resolve().as_uri()}/")
    assert not root.exists()


def test_a_copied_checkout_has_its_artifacts_and_not_those_that_it_was_copied_from(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_stages(root)
    ship_all(root)
    old = connect(tracking_uri(root))
    run_id = stage_runs(tracking_uri(root))["sft"].info.run_id
    logged = old.client.create_logged_model(old.experiment, name="policy", source_run_id=run_id)
    copied = Path(shutil.copytree(root, root.with_name("copied")))
    monkeypatch.chdir(copied)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # MLflow has set it in this process

    store, run = connect(tracking_uri(copied)), stage_runs(tracking_uri(copied))["sft"]
    new = store.client.create_run(store.experiment).info.artifact_uri
    model = store.client.get_logged_model(logged.model_id)

    here = f"{copied.resolve().as_uri()}/"
    assert run.info.artifact_uri.startswith(here)
    assert new.startswith(here)
    assert model.artifact_location.startswith(here)


@pytest.mark.long
@pytest.mark.parametrize("since", ["never", "used", "sent by an earlier version"])
def test_a_store_that_was_deleted_gets_everything_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    finish_stages(root)
    sync(root)
    if since == "sent by an earlier version":
        for path in (root / ".work/spool").glob("*/*/sent.json"):
            record = json.loads(path.read_text())
            del record["made"]
            path.write_text(json.dumps(record))
    shutil.rmtree(root / ".work/mlflow")
    if since == "used":  # by a stage that ran before anybody thought of the others
        spool = open_spool(root, RunStart("base", "run-2", {"run.seed": 0}, {}, {}))
        spool.finish("FINISHED", {}, [])
        ship = "from pathlib import Path; from tasks.tracking.shipping import ship; import sys\n"
        call(root, "-c", f"{ship}print(ship(Path(sys.argv[1])).state)", str(spool.folder))
        assert set(stage_runs(tracking_uri(root))) == {"base"}

    assert sync(root).startswith(f"{3 if since == 'used' else 2} runs are in MLflow")

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = stage_runs(tracking_uri(root))
    assert {*runs} - {"base"} == {"sft", "ppo@r1"}
    assert all(
        runs[stage].data.metrics == {"loss": 2.0, "gold": 1.5} for stage in ("sft", "ppo@r1")
    )
    # Once: the next call sends nothing.
    sent = list((root / ".work/spool").glob("*/*/sent.json"))
    before = {path: path.stat().st_mtime_ns for path in sent}
    sync(root)
    assert {path: path.stat().st_mtime_ns for path in sent} == before


def sync(root: Path) -> str:
    """`make sync` as a process of its own: this one keeps the file of the first store open."""
    return call(root, "-m", "tasks.sync")


def call(root: Path, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stage_of_a_temporary_experiment_reaches_the_store_of_the_checkout(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".dvc").mkdir(parents=True)
    temporary = root / ".dvc/tmp/exps/standalone/tmpabc"
    (temporary / ".dvc").mkdir(parents=True)
    finish_stages(temporary)
    ship_all(temporary, models=False)
    shutil.rmtree(temporary)  # as DVC does in the end
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert {result.state for result in ship_all(root)} == {"complete"}
    assert set(stage_runs(tracking_uri(root))) == {"sft", "ppo@r1"}
