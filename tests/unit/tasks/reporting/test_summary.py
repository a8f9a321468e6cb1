"""`results.json` and `summary.json` from the metrics files of whatever has run."""

import json
from pathlib import Path

import pytest

from tasks.reporting.result_table import gpu_line
from tasks.reporting.summary import (
    Machine,
    MetricsError,
    build_results,
    build_summary,
    read_outcomes,
)
from tasks.tracking.execution_record import result_points

GOLD = {"mean": 6.5, "low": 6.25, "high": 6.75, "n": 512}


def write(root: Path, place: str, **metrics: object) -> None:
    folder = root / "results" / place
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))


def test_the_form_is_that_of_the_design(tmp_path: Path) -> None:
    write(tmp_path, "baseline", policy="sft", gold=GOLD, finished=1.0)
    write(tmp_path, "evaluate/r1", policy="r1", gold=GOLD, kl={"mean": 3.0})
    write(tmp_path, "reward/r1", round="r1", pairs=1500, accuracy_before=None, accuracy_after=GOLD)
    write(tmp_path, "test", policy="r1", gold=GOLD, win_rate_vs_sft=GOLD)
    results = build_results(tmp_path, ["r1"], seed=3, test_policy="r1")
    assert (results["schema"], results["seed"]) == (1, 3)
    assert [policy["name"] for policy in results["policies"]] == ["sft", "r1"]
    assert list(results["policies"][0]) == [
        "name", "gold", "win_rate_vs_sft", "win_rate_vs_previous", "win_rate_judge", "kl", "proxy",
        "length", "finished", "distinct_2",
    ]  # fmt: skip
    assert results["policies"][1]["kl"] == {"mean": 3.0}
    (reward,) = results["reward_models"]
    assert (reward["round"], reward["pairs"], reward["accuracy_before"]) == ("r1", 1500, None)
    assert results["test"]["policy"] == "r1"
    assert results["test"]["win_rate_vs_sft"] == GOLD


def test_best_of_n_is_taken_whole_and_null_until_it_has_run(tmp_path: Path) -> None:
    assert build_results(tmp_path, [], seed=0, test_policy="r1")["best_of_n"] is None
    write(tmp_path, "best_of_n", samples=64, gain=GOLD)
    results = build_results(tmp_path, [], seed=0, test_policy="r1")
    assert results["best_of_n"] == {"samples": 64, "gain": GOLD}
    assert [(point.key, point.value) for point in result_points(results)] == [
        ("best_of_n/gain", 6.5)
    ]


def test_all_curves_end_with_the_policy_that_the_test_looks_at(tmp_path: Path) -> None:
    for number, key in enumerate(("r1", "r2", "r3"), start=1):
        write(tmp_path, f"evaluate/{key}", policy=key, gold={"mean": float(number)})
        accuracy = {"mean": number / 10}
        write(tmp_path, f"reward/{key}", round=key, pairs=9, accuracy_after=accuracy)
    write(tmp_path, "test", policy="r2", gold=GOLD)
    results = build_results(tmp_path, ["r1", "r2", "r3"], seed=0, test_policy="r2")

    points = [(point.key, point.step, point.value) for point in result_points(results)]

    assert [point for point in points if not point[0].startswith("test/")] == [
        ("gold", 0, 1.0), ("gold", 1, 2.0), ("reward_accuracy", 0, 0.1), ("reward_accuracy", 1, 0.2)
    ]  # fmt: skip


def test_rounds_that_have_not_run_are_left_out_and_the_order_is_that_of_the_params(
    tmp_path: Path,
) -> None:
    for key in ("r10", "r2"):
        write(tmp_path, f"evaluate/{key}", gold=GOLD)
    results = build_results(tmp_path, ["r2", "r10", "r11"], seed=0, test_policy="r11")
    assert [policy["name"] for policy in results["policies"]] == ["r2", "r10"]
    assert results["reward_models"] == []
    assert results["test"] is None


def test_data_without_a_rubric_has_null_for_gold(tmp_path: Path) -> None:
    write(tmp_path, "baseline", policy="sft", gold=None)
    (policy,) = build_results(tmp_path, [], seed=0, test_policy="r1")["policies"]
    assert policy["gold"] is None


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_broken_metrics_file_is_named(tmp_path: Path, content: str) -> None:
    write(tmp_path, "test")
    (tmp_path / "results/test/metrics.json").write_text(content)
    with pytest.raises(MetricsError, match=r"results/test/metrics\.json: expected"):
        build_results(tmp_path, [], seed=0, test_policy="r1")


def test_the_summary_adds_times_memory_and_machine_in_the_order_in_which_stages_ran(
    tmp_path: Path,
) -> None:
    for number, stage in enumerate(("ppo@r1", "sft", "base")):
        folder = tmp_path / ".work" / stage
        folder.mkdir(parents=True)
        outcome = {
            "stage": stage, "seconds": 10.26, "peak_rss_bytes": 7, "ended_ms": 50 - number,
            "execution": "now", "code": 0,
        }  # fmt: skip
        (folder / "outcome.json").write_text(json.dumps(outcome))
    outcomes = read_outcomes(tmp_path)
    summary = build_summary(
        build_results(tmp_path, [], seed=0, test_policy="r1"),
        commit="c0ffee",
        machine=Machine(cpu="a processor", threads=2),
        total_seconds=31.04,
        execution="now",
        outcomes=outcomes,
    )
    assert list(summary["seconds"]["stages"].items()) == [
        ("base", 10.3),
        ("sft", 10.3),
        ("ppo@r1", 10.3),
    ]
    assert summary["seconds"]["total"] == 31.0
    assert summary["peak_rss_bytes"] == {"base": 7, "ppo@r1": 7, "sft": 7}
    assert summary["machine"] == {"cpu": "a processor", "threads": 2}
    assert list(summary) == [
        "schema", "seed", "commit", "machine", "seconds", "peak_rss_bytes", "policies",
        "reward_models", "test", "best_of_n",
    ]  # fmt: skip


def test_what_ran_in_an_earlier_execution_is_listed_apart_if_it_was_done(tmp_path: Path) -> None:
    """base ran last week and was up to date today; its old outcome is still there."""
    outcomes = [
        {"stage": stage, "seconds": took, "peak_rss_bytes": 9, "ended_ms": end, "execution": run,
         "code": code}
        for stage, took, end, run, code in (
            ("base", 92.0, 10, "last week", 0),
            ("sft", 61.0, 20, "last week", 0),
            ("ppo@r1", 30.0, 30, "today", 0),
            ("test", 5.0, 40, "last week", 143),
        )
    ]  # fmt: skip
    summary = build_summary(
        build_results(tmp_path, [], seed=0, test_policy="r1"),
        commit="c0ffee",
        machine=Machine(cpu="a processor", threads=2),
        total_seconds=31.0,
        execution="today",
        outcomes=outcomes,
    )
    assert summary["seconds"] == {
        "total": 31.0, "stages": {"ppo@r1": 30.0}, "earlier": {"base": 92.0, "sft": 61.0},
    }  # fmt: skip
    assert summary["peak_rss_bytes"] == {"ppo@r1": 9}


def test_the_gpus_of_stages_that_ran_are_a_part_of_the_machine(tmp_path: Path) -> None:
    def ran(stage: str, execution: str, **environment: str) -> dict[str, object]:
        return {"stage": stage, "seconds": 1.0, "peak_rss_bytes": 9, "ended_ms": 1, "code": 0,
                "execution": execution, "environment": environment}  # fmt: skip

    outcomes = [
        ran("prepare", "today", device="cpu"),
        ran("sft", "today", device="cuda", gpu="NVIDIA H200"),
        ran("ppo@r1", "today", device="cuda", gpu="NVIDIA H200"),
        ran("base", "last week", device="cuda", gpu="NVIDIA H100"),
    ]
    summary = build_summary(
        build_results(tmp_path, [], seed=0, test_policy="r1"),
        commit="c",
        machine=Machine(cpu="x", threads=2),
        total_seconds=1.0,
        execution="today",
        outcomes=outcomes,
    )
    assert summary["machine"] == {"cpu": "x", "threads": 2, "gpus": ["NVIDIA H200"]}
    assert gpu_line(summary["machine"]).startswith("GPU: NVIDIA H200 (")
    assert gpu_line({"cpu": "x", "threads": 2}) == ""


def test_the_loss_of_sft_is_there_only_where_demonstrations_were_held_out(tmp_path: Path) -> None:
    write(tmp_path / "none", "sft", loss=1.0)
    assert "sft" not in build_results(tmp_path / "none", [], seed=0, test_policy="r1")
    heldout = {"demonstrations": 4, "base": 2.0, "sft": 1.5}
    write(tmp_path, "sft", loss=1.0, heldout=heldout)
    found = build_results(tmp_path, [], seed=0, test_policy="r1")
    assert found["sft"] == {"heldout": heldout}
    shown = build_summary(
        found,
        commit="c",
        machine=Machine(cpu="x", threads=1),
        total_seconds=1.0,
        execution=None,
        outcomes=[],
    )
    assert shown["sft"] == {"heldout": heldout}


def test_rounds_whose_rollouts_came_from_a_server_are_named_only_where_there_are_some(
    tmp_path: Path,
) -> None:
    write(tmp_path, "ppo/r1", iterations=3)
    assert "served_rollouts" not in build_results(tmp_path, ["r1"], seed=0, test_policy="r1")
    write(tmp_path, "ppo/r2", iterations=3, rollouts="server")
    results = build_results(
        tmp_path, ["r1", "r2"], seed=0, test_policy="r2", started_elsewhere=["r2"]
    )
    assert results["served_rollouts"] == results["started_elsewhere"] == ["r2"]
    machine = Machine(cpu="x", threads=2)
    summary = build_summary(
        results, commit="c", machine=machine, total_seconds=1.0, execution=None, outcomes=[]
    )
    assert summary["served_rollouts"] == summary["started_elsewhere"] == ["r2"]
    assert "started_elsewhere" not in build_results(tmp_path, ["r1"], seed=0, test_policy="r1")
