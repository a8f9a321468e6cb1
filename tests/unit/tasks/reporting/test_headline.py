"""The few numbers of a run that git keeps, for `dvc metrics`."""

import json
from pathlib import Path
from typing import Any

from tasks.reporting.headline import write_headline
from tasks.reporting.summary import build_results
from tests.unit.tasks.reporting.report_world import write_world


def written(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*.json"))
    return {path.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in files}


def test_the_final_policy_comes_first_and_each_policy_has_a_row(tmp_path: Path) -> None:
    write_world(tmp_path, ("r1", "r2"))
    results = build_results(tmp_path, ["r1", "r2"], seed=0, test_policy="r2")
    results["test"]["gold"] = {"mean": 6.904, "low": 6.7, "high": 7.1, "n": 9}
    results["test"]["win_rate_vs_sft"] = {"mean": 0.8126, "low": 0.7, "high": 0.9, "n": 9}
    write_headline(tmp_path / "out", results)
    found = written(tmp_path / "out")
    assert list(found) == ["final.json", "rounds/r1.json", "rounds/r2.json", "rounds/sft.json"]
    assert found["final.json"] == {
        "gold": 7.2, "gold_test": 6.9, "win": 0.855, "win_test": 0.813, "kl": 3.4,
        "reward_before": 0.55, "reward_after": 0.72,
    }  # fmt: skip
    assert found["rounds/r1.json"] == {
        "gold": 5.8, "win": 0.759, "win_previous": 0.6, "kl": 1.7, "reward_after": 0.71,
    }  # fmt: skip
    assert found["rounds/sft.json"] == {"gold": 4.4, "win": 0.5, "kl": 0.0}


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    write_world(tmp_path, ("r1",), gold=False)
    results = build_results(tmp_path, ["r1"], seed=0, test_policy="r1")
    write_headline(tmp_path / "out", results)
    assert list(written(tmp_path / "out")["final.json"]) == [
        "win", "win_test", "kl", "reward_after", "proxy",
    ]  # fmt: skip


def test_a_run_that_has_only_begun_has_only_what_it_measured(tmp_path: Path) -> None:
    results = {"policies": [], "reward_models": [], "test": None}
    write_headline(tmp_path / "out", results)
    assert written(tmp_path / "out") == {"final.json": {}}
