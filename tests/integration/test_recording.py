"""What stays of a flow run, by how it ended: a row for MLflow, the summary, an execution."""

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.logging import disable_run_logger
from prefect.states import Completed, Failed

from flows.recording import recorded
from tasks.params.loading import load_params
from tasks.workspace.execution import Execution, last_execution, save_execution
from tasks.workspace.files import read_json, write_json
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401

pytestmark = pytest.mark.long

PARAMS = load_params(Path(__file__).resolve().parents[2] / "params.yaml")
FLOW, BEFORE = "5d7e", "20261128-x"


@pytest.fixture
def root(experiment: Path) -> Path:
    """`make repro` has begun, trained SFT and measured it, and was interrupted in r1."""
    (experiment / ".dvc/tmp").mkdir(parents=True)
    (experiment / ".dvc/config").write_text("[core]\n  no_scm = true\n  analytics = false\n")
    stage = {"cmd": "true", "outs": ["results/baseline"]}
    (experiment / "dvc.yaml").write_text(json.dumps({"stages": {"baseline": stage}}))
    (experiment / "results/baseline").mkdir(parents=True)
    write_json(experiment / "results/baseline/metrics.json", {"policy": "sft", "gold": None})
    worked(experiment, "sft", BEFORE)
    save_execution(experiment, Execution(id=BEFORE, key="make repro"))
    return experiment


def worked(root: Path, stage: str, execution: str) -> None:
    outcome = {
        "stage": stage, "seconds": 60.0, "peak_rss_bytes": 7, "ended_ms": 1, "code": 0,
        "execution": execution,
    }  # fmt: skip
    (root / ".work" / stage).mkdir(parents=True)
    write_json(root / ".work" / stage / "outcome.json", outcome)


def flow_run(
    root: Path, *states: State[None], ran: bool = False, restored: bool = False
) -> tuple[dict[str, Any] | None, dict[str, Any], Execution]:
    """Its end in the spool, the summary, and the last execution, after a run that did this."""
    with disable_run_logger(), recorded(root, FLOW, PARAMS) as found:
        if ran:
            worked(root, "ppo@r1", FLOW)
        if restored:
            lock = {"schema": "2.0", "stages": {"sft": {"cmd": "x", "outs": []}}}
            (root / "dvc.lock").write_text(json.dumps(lock))
        found.extend(states)
    last = last_execution(root)
    assert last is not None
    summary = json.loads((root / "reports/summary.json").read_text())
    return read_json(root / f".work/executions/{FLOW}/end.json"), summary, last


def test_where_nothing_was_to_be_done_there_is_no_row(root: Path) -> None:
    end, _, last = flow_run(root, Completed())

    assert end is None
    assert (last.id, last.unfinished) == (BEFORE, True), "`make repro` goes on with it"


def test_what_dvc_restored_is_a_row_and_no_execution_of_stages(root: Path) -> None:
    end, _, last = flow_run(root, Completed(), restored=True)

    assert end is not None
    assert end["status"] == "FINISHED"
    assert last.id == BEFORE


def test_a_run_that_worked_is_the_last_execution_and_has_come_to_an_end(root: Path) -> None:
    end, summary, last = flow_run(root, Failed(message="blocked"), ran=True)

    assert end is not None
    assert (end["status"], end["message"]) == ("FAILED", "blocked")
    assert (last.id, last.unfinished) == (FLOW, False)
    assert summary["seconds"]["stages"] == {"ppo@r1": 60.0}
    # What earlier ones did is no part of a run that is not whole, nor what has still to run.
    assert "earlier" not in summary["seconds"]
    assert summary["policies"] == []


def test_a_run_that_is_tried_again_took_what_its_tries_took_together(root: Path) -> None:
    flow_run(root, Failed(message="its test crashed"), ran=True)

    end, summary, last = flow_run(root, Completed())

    assert end is not None
    (seconds,) = [point["value"] for point in end["points"] if point["key"] == "seconds"]
    # Its PPO alone had taken 60.
    assert min(seconds, summary["seconds"]["total"], last.seconds) >= 60
    # A third one adds to that, and nothing of what an earlier execution took.
    _, summary, _ = flow_run(root, Completed())
    assert 60 <= summary["seconds"]["total"] < 120


def test_an_interrupted_run_is_not_whole(root: Path) -> None:
    end, summary, _ = flow_run(root, ran=True)

    assert end is not None
    assert end["status"] == "KILLED"
    assert "earlier" not in summary["seconds"]


def test_results_of_a_run_whose_inputs_changed_meanwhile_are_shown(root: Path) -> None:
    """DVC calls all its stages unfinished then."""
    _, summary, _ = flow_run(root, Completed(name="Stale"), ran=True)

    assert [policy["name"] for policy in summary["policies"]] == ["sft"]
