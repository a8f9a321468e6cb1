"""Spools against a real MLflow: a temporary SQLite file, a closed port, a fresh process."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.running.staging import write_json_lines
from tasks.sync import main as sync_main
from tasks.tracking.shipper import Shipper
from tasks.tracking.shipping import ship, ship_all, tracking_uri
from tasks.tracking.spool import Output, RunStart, Spool, open_spool
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import (  # noqa: F401
    history,
    log_steps,
    repository,
    root_fixture,
    run_of,
    runs_of,
    start,
)
from tests.waiting import eventually

CLOSED_PORT = "http://127.0.0.1:9"


def test_a_finished_stage_arrives_with_curve_params_inputs_tags_and_artifacts(root: Path) -> None:
    artifact = root / "results" / "metrics.json"
    artifact.parent.mkdir()
    artifact.write_text('{"gold": 7.5}')
    spool = open_spool(root, start())
    log_steps(spool, 0, 5)
    spool.finish("FINISHED", {"gold/mean": 7.5}, [Output("artifact", artifact)])

    assert [result.state for result in ship_all(root)] == ["complete"]

    run = run_of(root, "ppo@r1")
    assert run.info.status == "FINISHED"
    assert history(root, run, "objective/kl") == [(n, n / 10) for n in range(5)]
    assert history(root, run, "gold/mean") == [(4, 7.5)]
    assert run.data.params == {"ppo.kl_coef": "0.05", "run.seed": "0"}
    assert run.data.tags["git.commit"] == "c0ffee"
    assert run.data.tags["dvc.in.data/rounds/r1/preferences"].endswith(".dir")
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.digest == "0123456789abcdef0123456789abcdef.dir"
    found = MlflowClient(tracking_uri(root)).list_artifacts(run.info.run_id)
    assert [entry.path for entry in found] == ["metrics.json"]


def test_samples_arrive_as_a_table_once(root: Path) -> None:
    folder = root / "results/evaluate/r1"
    folder.mkdir(parents=True)
    ends = "é\u2028\u2029\u0085"  # Unicode's ends of lines are no ends of rows.
    rows = [{"prompt": "p", "response": ends}, {"prompt": "q", "response": "b", "gold": 2.0}]
    write_json_lines(folder / "samples.jsonl", rows)
    spool = open_spool(root, start("evaluate@r1"))
    spool.finish("FINISHED", {}, [Output("artifact", folder)])
    ship_all(root)
    (spool.folder / "sent.json").unlink()
    ship_all(root)

    run = run_of(root, "evaluate@r1")
    client = MlflowClient(tracking_uri(root))
    table = client.load_table(run.info.experiment_id, "samples.json", [run.info.run_id])
    assert table.columns.tolist() == ["prompt", "response", "gold"]
    assert table["response"].tolist() == [ends, "b"]
    assert table["gold"].isna().tolist() == [True, False]


@pytest.mark.parametrize("damaged", ["metrics.jsonl", "sent.json"])
def test_a_damaged_spool_is_named_and_the_others_arrive(root: Path, damaged: str) -> None:
    broken, sound = (open_spool(root, start(stage)) for stage in ("sft", "ppo@r1"))
    for spool in (broken, sound):
        log_steps(spool, 0, 2)
        spool.finish("FINISHED", {}, [])
    (broken.folder / damaged).write_text("{not JSON\n")

    first, second = ship_all(root)

    assert (first.folder, first.state, second.state) == (broken.folder, "refused", "complete")
    assert first.detail.startswith(f"{broken.folder}: cannot be read (JSONDecodeError: ")
    assert run_of(root, "ppo@r1").info.status == "FINISHED"


def test_the_use_of_the_machine_arrives_beside_the_curves_of_the_stage(root: Path) -> None:
    key = "system/process_memory_megabytes"
    spool = open_spool(root, start())
    log_steps(spool, 0, 3)
    for value in (10.0, 30.0):
        spool.log_system({key: value})
        assert ship(spool.folder).state == "open"
        assert history(root, run_of(root, "ppo@r1"), key)[-1][1] == value
    spool.finish("FINISHED", {"gold": 1.0}, [])
    for _ in range(2):
        ship_all(root)
        (spool.folder / "sent.json").unlink()

    run = run_of(root, "ppo@r1")
    assert history(root, run, key) == [(0, 10.0), (1, 30.0)]
    assert history(root, run, "gold") == [(2, 1.0)], "at the last step of the stage's own curves"


def test_stages_of_one_execution_share_a_parent_that_can_be_compared_with_another(
    root: Path,
) -> None:
    for execution, kl_coef in (("run-1", 0.05), ("run-2", 0.0)):
        for stage in ("sft", "ppo@r1"):
            spool = open_spool(root, start(stage, execution, kl_coef))
            spool.finish("FINISHED", {"gold": kl_coef + 1}, [])
    ship_all(root)

    parents = {
        run.data.tags["rlhf.execution"]: run
        for run in runs_of(root, "tags.`rlhf.execution` LIKE 'run-%'")
    }
    assert sorted(parents) == ["run-1", "run-2"]
    for execution, kl_coef in (("run-1", 0.05), ("run-2", 0.0)):
        parent = parents[execution]
        children = runs_of(root, f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
        assert sorted(run.info.run_name[10:] for run in children) == [
            f" r1 ppo {execution}",
            f" sft {execution}",
        ]
        assert parent.data.params["ppo.kl_coef"] == str(kl_coef)
        assert parent.info.status == "FINISHED"


def test_replaying_after_every_kind_of_forgetting_makes_no_duplicate(root: Path) -> None:
    spool = open_spool(root, start())
    log_steps(spool, 0, 30)
    ship(spool.folder)
    spool.finish("FINISHED", {"gold": 1.0}, [])
    for _ in range(2):
        (spool.folder / "sent.json").unlink()
        assert ship(spool.folder).state == "complete"
    assert len(history(root, run_of(root, "ppo@r1"), "objective/kl")) == 30
    assert len(runs_of(root, "tags.`rlhf.execution` = 'run-1'")) == 1


def test_a_server_that_is_away_stalls_nothing_and_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", CLOSED_PORT)
    shipper = Shipper(root, every=0.05)
    spool = open_spool(root, start())
    slowest = 0.0
    for step in range(200):
        before = time.perf_counter()
        spool.log(step, {f"metric_{n}": float(step) for n in range(10)})
        slowest = max(slowest, time.perf_counter() - before)
        time.sleep(0.001)
    spool.finish("FINISHED", {}, [])
    before = time.perf_counter()
    assert not shipper.close(deadline_seconds=2.0)
    # MLflow itself would try again for minutes.
    assert time.perf_counter() - before < 60
    assert slowest < 60

    assert ship(spool.folder).state == "unreachable"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", here)
    monkeypatch.chdir(root)
    (root / "dvc.yaml").touch()
    assert sync_main([]) == 0
    assert sync_main([]) == 0
    run = run_of(root, "ppo@r1")
    assert run.info.status == "FINISHED"
    assert history(root, run, "metric_3") == [(n, float(n)) for n in range(200)]


def test_sync_exits_1_and_names_the_stage_while_the_server_is_away(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_spool(root, start()).finish("FINISHED", {}, [])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", CLOSED_PORT)
    monkeypatch.chdir(root)
    (root / "dvc.yaml").touch()
    assert sync_main([]) == 1
    assert capsys.readouterr().err.startswith("ppo@r1: ")


def test_the_shipper_delivers_while_the_stage_runs(root: Path) -> None:
    shipper = Shipper(root, every=0.05)
    spool = open_spool(root, start())
    log_steps(spool, 0, 3)
    eventually(lambda: (spool.folder / "sent.json").exists() and arrived(spool))
    assert run_of(root, "ppo@r1").info.status == "RUNNING"
    log_steps(spool, 3, 6)
    spool.finish("FINISHED", {}, [])
    assert shipper.close(deadline_seconds=300)
    run = run_of(root, "ppo@r1")
    assert run.info.status == "FINISHED"
    assert [step for step, _ in history(root, run, "policy/loss")] == list(range(6))


def arrived(spool: Spool) -> bool:
    sent = json.loads((spool.folder / "sent.json").read_text())
    return bool(sent["metrics"] == (spool.folder / "metrics.jsonl").stat().st_size > 0)


KILLED_STAGE = """
import os, signal, sys
from pathlib import Path
from tasks.tracking.spool import RunStart, open_spool
spool = open_spool(Path(sys.argv[1]), RunStart("ppo@r1", "run-1", {}, {}, {}))
for step in range(8):
    spool.log(step, {"objective/kl": step / 10, "policy/loss": -float(step)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_stage_is_marked_killed_and_its_run_continues_after_the_resume(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_STAGE, str(root)], check=False, cwd=repository()
    )
    assert done.returncode == -9
    ship_all(root)
    assert run_of(root, "ppo@r1").info.status == "KILLED"

    spool = open_spool(root, RunStart("ppo@r1", "run-1", {}, {}, {}))
    log_steps(spool, 5, 10)  # the checkpoint was older than the kill
    ship_all(root)
    assert run_of(root, "ppo@r1").info.status == "RUNNING"
    spool.finish("FINISHED", {}, [])
    ship_all(root)
    run = run_of(root, "ppo@r1")
    assert run.info.status == "FINISHED"
    assert history(root, run, "objective/kl") == [(n, n / 10) for n in range(10)]


@pytest.mark.long
def test_two_processes_on_a_fresh_database_all_deliver(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/fresh/mlflow.db")
    for number in range(2):
        spool = open_spool(root, start(stage=f"ppo@r{number}"))
        log_steps(spool, 0, 3)
        spool.finish("FINISHED", {}, [])
    code = (
        "import sys; from pathlib import Path; from tasks.tracking.shipping import ship\n"
        "print(ship(Path(sys.argv[1])).state)"
    )
    folders = sorted((root / ".work" / "spool").glob("ppo@*/*"))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=repository(),
        )
        for folder in folders
    ]
    assert [worker.communicate(timeout=300)[0].strip() for worker in workers] == ["complete"] * 2
    assert len(runs_of(root, "tags.`rlhf.execution` = 'run-1'")) == 1
    assert len(runs_of(root, "tags.`rlhf.stage` LIKE 'ppo%'")) == 2


def test_a_thread_that_ships_never_ships_the_same_spool_twice_at_once(root: Path) -> None:
    spool = open_spool(root, start())
    log_steps(spool, 0, 50)
    spool.finish("FINISHED", {}, [])
    states: list[str] = []
    threads = [
        threading.Thread(target=lambda: states.append(ship(spool.folder).state)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(states) <= {"complete", "busy"}
    assert len(history(root, run_of(root, "ppo@r1"), "objective/kl")) == 50


def test_the_mlflow_setting_against_pickle_is_enforced_by_shipping(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
    spool = open_spool(root, start())
    spool.finish("FINISHED", {}, [])
    ship(spool.folder)
    assert os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
