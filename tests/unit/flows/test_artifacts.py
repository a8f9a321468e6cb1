"""The tables and links that a flow run shows in Prefect."""

import json
import socket
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from prefect.artifacts import create_markdown_artifact
from prefect.logging import disable_run_logger
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.artifacts import (
    artifact_key,
    publish_gate,
    publish_results,
    publish_waiting,
    results_until,
    round_rows,
    runs_in_markdown,
)
from tasks.tracking.links import mlflow_runs, run_link
from tasks.tracking.sent import DEFAULT_STORE, Sent, save_sent, store_digest
from tasks.tracking.shipping import tracking_uri


def estimate(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "n": 512}


def policy(name: str, gold: float | None) -> dict[str, object]:
    return {
        "name": name,
        "gold": None if gold is None else estimate(gold),
        "win_rate_vs_sft": estimate(0.8),
        "win_rate_vs_previous": None if gold is None else estimate(0.62),
        "kl": estimate(3),
    }


def test_a_row_has_the_policy_and_the_reward_model_that_made_it():
    results = {
        "policies": [policy("sft", 4.5), policy("r1", 7.25)],
        "reward_models": [
            {"round": "r1", "accuracy_before": estimate(0.61), "accuracy_after": estimate(0.74)}
        ],
    }
    sft, first = round_rows(results)
    assert sft["reward model after"] == "-"
    assert first == {
        "policy": "r1",
        "gold score (of 10)": "7.25 [7.20, 7.30]",
        "win rate vs SFT": "0.800 [0.750, 0.850]",
        "vs round before": "0.620 [0.570, 0.670]",
        "KL to SFT (nats)": "3.00 [2.95, 3.05]",
        "reward model before": "0.610 [0.560, 0.660]",
        "reward model after": "0.740 [0.690, 0.790]",
    }


def test_where_nothing_was_measured_the_row_says_so():
    results = {
        "policies": [policy("sft", 4.5), policy("r1", None)],
        "reward_models": [
            {"round": "r1", "accuracy_before": None, "accuracy_after": {"mean": 0.7}}
        ],
    }
    _, row = round_rows(results)
    assert row["gold score (of 10)"] == "-"
    assert row["reward model before"] == "-"
    assert row["reward model after"] == "0.700"


def test_without_gold_a_row_has_scores_and_the_accuracy_on_labels():
    first = policy("r1", None) | {"proxy": estimate(1.4), "proxy_sft": estimate(0.1)}
    sft = policy("sft", None) | {"win_rate_vs_sft": None, "proxy": {"mean": None}}
    model = {"round": "r1", "accuracy_before": None, "accuracy_after": None}
    results = {
        "policies": [sft, first],
        "reward_models": [model | {"label_accuracy": estimate(0.71)}],
    }
    before, after = round_rows(results)
    assert (before["score"], before["reward model on held-out labels"]) == ("-", "-")
    assert after == {
        "policy": "r1",
        "score of SFT": "0.10 [0.05, 0.15]",
        "score": "1.40 [1.35, 1.45]",
        "win rate vs SFT": "0.800 [0.750, 0.850]",
        "vs round before": "-",
        "KL to SFT (nats)": "3.00 [2.95, 3.05]",
        "reward model on held-out labels": "0.710 [0.660, 0.760]",
    }


def test_without_gold_the_page_names_the_judge_and_the_baselines(
    monkeypatch: pytest.MonkeyPatch,
):
    said = {}
    monkeypatch.setattr("flows.artifacts.create_table_artifact", lambda **page: said.update(page))
    judged = policy("r1", None) | {"win_rate_judge": "reward_model"}
    model = {"round": "r1", "accuracy_before": None, "accuracy_after": None}
    model |= {"label_accuracy": estimate(0.71), "label_longer_wins": estimate(0.6)}
    results = {"policies": [judged], "reward_models": [model], "test": None}

    publish_results(results, "r1")

    assert "judged by the reward model that the policy was trained on" in said["description"]
    assert "Baselines on the held-out labels of r1: longer wins 0.600." in said["description"]
    assert "before and after retraining" not in said["description"]


def test_after_a_round_nothing_is_shown_that_an_earlier_run_left_behind():
    """While r1 is evaluated anew, the files of r2 and of the test are still the last run's."""
    reward = {"accuracy_before": None, "accuracy_after": estimate(0.7)}
    results = {
        "policies": [policy("sft", 4.5), policy("r1", 7.0), policy("r2", 8.4)],
        "reward_models": [{"round": key, **reward} for key in ("r1", "r2")],
        "test": {**policy("r2", 8.5), "policy": "r2"},
    }
    shown = results_until(results, "r1")
    assert [row["policy"] for row in round_rows(shown)] == ["sft", "r1"]
    assert [model["round"] for model in shown["reward_models"]] == ["r1"]
    assert shown["test"] is None
    assert results_until(results, "r2")["policies"] == results["policies"]


@pytest.mark.parametrize(
    ("stage", "key"), [("ppo@r1", "ppo-r1"), ("sft", "sft"), ("reward@Big_1", "reward-big-1")]
)
def test_keys_of_artifacts_are_what_prefect_takes(stage, key):
    assert artifact_key(stage) == key


def test_only_runs_of_this_execution_that_mlflow_knows_are_listed(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    here = store_digest(tmp_path, tracking_uri(tmp_path))
    (tmp_path / DEFAULT_STORE).parent.mkdir(parents=True)
    (tmp_path / DEFAULT_STORE).touch()
    for stage, execution, run in [
        ("sft", "now", "a1"),
        ("base", "earlier", "b2"),
        ("ppo@r1", "now", ""),
    ]:
        folder = tmp_path / ".work" / "spool" / stage / "0"
        folder.mkdir(parents=True)
        start = {"stage": stage, "execution": execution}
        (folder / "start.json").write_text(json.dumps(start))
        save_sent(folder, Sent(uri=here, run=run))
    assert mlflow_runs(tmp_path, "now") == {"sft": "a1"}
    (tmp_path / DEFAULT_STORE).unlink()
    assert mlflow_runs(tmp_path, "now") == {}


def test_with_a_page_the_runs_are_links():
    page = runs_in_markdown({"ppo@r1": "a1"}, "sqlite:///x.db", "http://127.0.0.1:5000")
    assert "| ppo@r1 | [a1](http://127.0.0.1:5000/#/runs/a1) |" in page
    assert run_link("http://127.0.0.1:5000", "a1") == "http://127.0.0.1:5000/#/runs/a1"


def test_without_a_page_the_command_that_opens_them_is_given():
    page = runs_in_markdown({"ppo@r1": "a1"}, "sqlite:////w/.work/mlflow/mlflow.db", None)
    assert "mlflow ui --backend-store-uri sqlite:////w/.work/mlflow/mlflow.db" in page
    assert "| ppo@r1 | `a1` |" in page
    page = runs_in_markdown({"ppo@r1": "a1"}, "postgresql://ada:hunter2@db/mlflow", None)
    assert "mlflow ui --backend-store-uri postgresql://***@db/mlflow" in page


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Artifact creation outside")
def test_a_run_continues_without_its_pages_while_prefect_cannot_be_reached(tmp_path):
    report = tmp_path / "results" / "validate" / "r1" / "report.md"
    report.parent.mkdir(parents=True)
    report.write_text("# Nothing to complain about")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # Taken, and nobody listens.
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/api"
        away = temporary_settings({PREFECT_API_URL: address, PREFECT_CLIENT_MAX_RETRIES: 0})
        with away, disable_run_logger():
            with pytest.raises(httpx.TransportError):
                create_markdown_artifact("a page", key="page")

            publish_waiting("round r1 waits")
            publish_gate(tmp_path, "validate@r1", "r1", "")
            results = {"policies": [policy("r1", 4.5)], "reward_models": [], "test": None}
            publish_results(results, "r1")


class Proxy(BaseHTTPRequestHandler):
    """In front of a server that is away."""

    status = 502

    def do_POST(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.filterwarnings("ignore:Artifact creation outside")
@pytest.mark.parametrize(
    ("status", "goes_on"), [(502, True), (504, True), (500, False), (403, False)]
)
def test_a_proxy_that_says_that_prefect_is_away_is_told_from_a_refusal(
    monkeypatch: pytest.MonkeyPatch, status: int, goes_on: bool
):
    monkeypatch.setattr(Proxy, "status", status)
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{proxy.server_port}/api"
        away = temporary_settings({PREFECT_API_URL: address, PREFECT_CLIENT_MAX_RETRIES: 0})
        with (
            away,
            disable_run_logger(),
            nullcontext() if goes_on else pytest.raises(httpx.HTTPStatusError),
        ):
            publish_waiting("round r1 waits")
        proxy.shutdown()


def test_a_name_in_the_words_of_a_gate_is_no_picture_that_calls_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, str] = {}
    monkeypatch.setattr(
        "flows.artifacts.create_markdown_artifact", lambda _page, **named: said.update(named)
    )
    report = tmp_path / ".work/validate@r1/blocked/report.md"
    report.parent.mkdir(parents=True)
    report.write_text("# BLOCKED")

    publish_gate(tmp_path, "validate@r1", "r1", 'weak_annotators: "![x](http://e.example/p)" <b>')

    assert said["description"] == ('weak\\_annotators: "!\\[x\\](http://e.example/p)" &lt;b&gt;')
