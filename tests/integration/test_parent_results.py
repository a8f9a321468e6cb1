"""What MLflow shows of an execution's results: numbers, curves of all rounds, data, report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from tasks.params.loading import Params
from tasks.tracking.execution_record import record_end, record_rounds, record_start
from tasks.tracking.shipping import ship_all, tracking_uri
from tests.git_command import git
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.parent_world import (  # noqa: F401
    estimate,
    params_fixture,
    parents,
    results,
    root_fixture,
    today,
)

REPORTING = Path(__file__).resolve().parents[2] / "tasks/reporting"


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


def test_the_report_in_mlflow_does_not_link_to_a_page_that_is_not_there(
    root: Path, params: Params
) -> None:
    template = (REPORTING / "report.html.j2").read_text()
    assert template.count('href="run.html"') == 1
    (root / "reports/index.html").write_text(template)
    record_start(root, "linked", params)
    made = results(4.5, 6.25, 8.0, test="r1")
    record_end(root, "linked", status="FINISHED", message="", seconds=1.0, results=made)

    page = (root / ".work/executions/linked/report.html").read_text()
    lines = template.splitlines()
    assert page.splitlines() == [line for line in lines if "run.html" not in line]


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


def test_a_round_sends_the_points_that_are_new(
    root: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record holds all curves so far: sent whole, many rounds took MLflow hours."""
    sent: list[tuple[str, int]] = []
    log_batch = MlflowClient.log_batch

    def noted(client: MlflowClient, run: str, metrics: tuple[Metric, ...] = (), **rest: Any) -> Any:
        sent.extend((metric.key, metric.step) for metric in metrics)
        return log_batch(client, run, metrics=metrics, **rest)

    monkeypatch.setattr(MlflowClient, "log_batch", noted)
    made = results(4.5, 6.25, 8.0)
    write_history(root, "ppo", "r1", "objective/kl", [0.5, 1.5])
    record_start(root, "rounds", params)
    record_rounds(root, "rounds", ["r1"], "r1", made)
    ship_all(root)
    assert {("gold", 0), ("gold", 1), ("ppo/objective/kl", 1)} <= set(sent)
    assert len(sent) == len(set(sent))
    del sent[:]

    write_history(root, "ppo", "r2", "objective/kl", [2.5, 3.5])
    record_rounds(root, "rounds", ["r1", "r2"], "r2", made)
    ship_all(root)
    assert ("gold", 2) in sent
    assert {("ppo/objective/kl", 2), ("ppo/objective/kl", 3)} <= set(sent)
    assert {step for _, step in sent} == {2, 3}


def test_an_execution_that_comes_to_other_numbers_shows_the_new_ones(
    root: Path, params: Params
) -> None:
    """Its commit and params.yaml are the same, its own data or its uncommitted code are not."""
    record_start(root, "again", params)
    for gold in (8.0, 6.5, 7.0, 7.0):
        write_history(root, "ppo", "r1", "objective/kl", [0.5, gold])
        made = results(4.5, gold, 9.0, test="r1")
        record_end(root, "again", status="FINISHED", message="", seconds=gold, results=made)
        for _ in range(2):
            ship_all(root)
            (root / ".work/executions/again/sent.json").unlink()
        (parent,) = parents()
        shown = {name: parent.data.metrics[name] for name in ("gold", "seconds")}
        assert shown == {"gold": gold, "seconds": gold}
        assert parent.data.metrics["ppo/objective/kl"] == gold
    history = MlflowClient(tracking_uri(root)).get_metric_history(parent.info.run_id, "gold")
    assert [(one.step, one.value) for one in history] == [(0, 4.5), (1, 8.0), (1, 6.5), (1, 7.0)]


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
