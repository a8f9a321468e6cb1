"""The summary of a workspace: whose results and times it has, and whose not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.params.loading import Params, load_params
from tasks.reporting.run_results import read_results, write_summary
from tasks.workspace.execution import Execution, save_execution

ROOT = Path(__file__).resolve().parents[4]
GOLD = {"mean": 8.0, "low": 7.5, "high": 8.5, "n": 512}


@pytest.fixture(scope="module")
def params() -> Params:
    """Three rounds, of which the second is the final one; r3 begins anew."""
    found = load_params(ROOT / "params.yaml")
    rounds = found.rounds | {"r3": replace(found.rounds["r3"], start="models/sft")}
    run = replace(found.run, seed=7, threads=3)
    return replace(found, final="r2", rounds=rounds, run=run)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """All three rounds lie there; the last execution did no more than sft and r2's PPO."""
    for place in ("baseline", *(f"evaluate/r{n}" for n in (1, 2, 3)), "test"):
        folder = tmp_path / "results" / place
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps({"policy": "r2", "gold": GOLD}))
    for number, (stage, execution, seconds) in enumerate(
        (("base", "before", 90.0), ("sft", "now", 60.0), ("ppo@r2", "now", 30.0),
         ("ppo@gone", "now", 500.0))
    ):  # fmt: skip
        outcome = {
            "stage": stage, "seconds": seconds, "peak_rss_bytes": 7, "ended_ms": number, "code": 0,
            "execution": execution,
        }  # fmt: skip
        (tmp_path / ".work" / stage).mkdir(parents=True)
        (tmp_path / ".work" / stage / "outcome.json").write_text(json.dumps(outcome))
    execution = Execution(id="now", key="k", unfinished=False)
    execution.seconds = 123.4
    save_execution(tmp_path, execution)
    return tmp_path


def written(workspace: Path, params: Params, **options: Any) -> dict[str, Any]:
    returned = write_summary(workspace, params, **options)
    summary: dict[str, Any] = json.loads((workspace / "reports/summary.json").read_text())
    assert summary == returned
    assert (workspace / "reports/run.html").exists()
    return summary


def test_results_are_those_of_the_params(workspace: Path, params: Params) -> None:
    found = read_results(workspace, params)

    assert found["seed"] == 7
    assert [policy["name"] for policy in found["policies"]] == ["sft", "r1", "r2", "r3"]
    assert found["test"]["policy"] == "r2"
    assert found["started_elsewhere"] == ["r3"]


def test_a_run_that_is_whole_counts_what_earlier_ones_had_done(
    workspace: Path, params: Params
) -> None:
    """But no round that the params no longer have."""
    summary = written(workspace, params, whole=True, unfinished=())

    assert summary["machine"]["threads"] == 3
    assert summary["seconds"] == {
        "total": 123.4, "stages": {"sft": 60.0, "ppo@r2": 30.0}, "earlier": {"base": 90.0},
    }  # fmt: skip
    assert summary["test"]["policy"] == "r2"


def test_a_run_that_is_not_whole_has_its_own_times_and_no_results_of_unfinished_stages(
    workspace: Path, params: Params
) -> None:
    unfinished = ["evaluate@r2", "evaluate@r3", "test"]

    summary = written(workspace, params, whole=False, unfinished=unfinished)

    assert summary["seconds"] == {"total": 123.4, "stages": {"sft": 60.0, "ppo@r2": 30.0}}
    assert [policy["name"] for policy in summary["policies"]] == ["sft", "r1"]
    assert summary["test"] is None
