"""What people see of a run in Prefect besides its log: the metrics, and links to MLflow.

The pages are optional: without a reachable Prefect server they are skipped; the run continues.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.reach import is_absence
from preferences.report import escaped
from tasks.params.redaction import redact
from tasks.reporting.caveats import caveats
from tasks.reporting.without_gold import baselines, has_gold, judge_words
from tasks.tracking.links import mlflow_runs, mlflow_ui, run_link
from tasks.tracking.shipping import tracking_uri
from tasks.workspace.work_folder import BLOCKED, GUARDS, STOPPED

NONE = "-"
GATE_SPOKE = {"Blocked", "Completed", "Cached"}
"""States of a gate's task in which its report is that of these data, and new."""


def publish_results(results: Mapping[str, Any], round_key: str) -> None:
    """The table `rounds`: one row per policy so far, as it stands after `round_key`.

    Args:
        results: from `tasks.reporting.summary.build_results`.
        round_key: the round that has just been evaluated.
    """
    shown = results_until(results, round_key)
    about = "Reward model: accuracy on the newest policy's pairs before and after retraining."
    if not has_gold(shown["policies"]):
        judge = judge_words(shown["policies"])
        about = f"Win rates are judged by {judge}." if judge else ""
    notes = [
        f"After round {round_key}: held-out prompts, 95 % intervals. {about}".strip(),
        *([] if has_gold(shown["policies"]) else baselines(shown["reward_models"])),
        *caveats(shown),
    ]
    with left_out_while_away("page rounds"):
        create_table_artifact(table=round_rows(shown), key="rounds", description="\n\n".join(notes))


def publish_stage(root: Path, stage: str, state: str, message: str) -> None:
    """The page of a stage that has ended, where there is one.

    Args:
        root: the workspace.
        stage: DVC's name of it.
        state: name of its task's state.
        message: of the state.
    """
    name, _, key = stage.partition("@")
    if state == "Waiting":
        publish_waiting(message)
    if name == "validate" and key and state in GATE_SPOKE:
        publish_gate(root, stage, key, message if state == "Blocked" else "")
    if name == "reward" and key and state in ("Blocked", "Stopped"):
        publish_guards(root, stage, message)


def publish_waiting(message: str) -> None:
    """The page `waiting`: what people have to do, with the link to the labelling page."""
    with left_out_while_away("page waiting"):
        create_markdown_artifact(
            re.sub(r"(https?://[^\s);]+)", r"[\1](\1)", message), key="waiting"
        )


def publish_gate(root: Path, stage: str, round_key: str, message: str) -> None:
    """The page `validate-r1`: what the data gate found in a round, above all where it blocked.

    Args:
        root: the workspace.
        stage: DVC's name of the gate's stage.
        round_key: the round.
        message: the stage's last words where it blocked, empty where the data passed.
    """
    folder = f".work/{stage}/{BLOCKED}" if message else f"results/validate/{round_key}"
    _publish_page(root / folder / "report.md", stage, message)


def publish_guards(root: Path, stage: str, message: str) -> None:
    """The page `reward-r2`: why a round ended before its PPO, with the probes and fresh labels.

    Args:
        root: the workspace.
        stage: DVC's name of the reward model's stage.
        message: the stage's last words.
    """
    for name in (BLOCKED, STOPPED):
        _publish_page(root / ".work" / stage / name / GUARDS, stage, message)


def _publish_page(report: Path, stage: str, message: str) -> None:
    if report.is_file():
        page, key = report.read_text(encoding="utf-8"), artifact_key(stage)
        with left_out_while_away(f"page {key}"):
            words = message or f"What {stage} found."
            # Shown as Markdown, and the words of a gate name people as the data do.
            create_markdown_artifact(page, key=key, description=escaped(words))


def results_until(results: Mapping[str, Any], round_key: str) -> dict[str, Any]:
    """`results` without what comes after `round_key`: it may be of an earlier run, still there."""
    names = [policy["name"] for policy in results["policies"]]
    known = names[: names.index(round_key) + 1]
    return {
        **results,
        "policies": results["policies"][: len(known)],
        "reward_models": [m for m in results["reward_models"] if m["round"] in known],
        "test": None,
    }


def round_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per policy: gold score, win rate, KL, accuracy of its round's reward model.

    Without gold: the score by the round's reward in place of gold, and the accuracy on held-out
    labels.
    """
    if not has_gold(results["policies"]):
        return _rows_without_gold(results)
    rewards = {model["round"]: model for model in results["reward_models"]}
    return [
        {
            "policy": policy["name"],
            "gold score (of 10)": _estimate(policy["gold"], 2),
            "win rate vs SFT": _estimate(policy["win_rate_vs_sft"], 3),
            "vs round before": _estimate(policy["win_rate_vs_previous"], 3),
            "KL to SFT (nats)": _estimate(policy["kl"], 2),
            "reward model before": _estimate(reward.get("accuracy_before"), 3),
            "reward model after": _estimate(reward.get("accuracy_after"), 3),
        }
        for policy in results["policies"]
        for reward in [rewards.get(policy["name"], {})]
    ]


def _rows_without_gold(results: Mapping[str, Any]) -> list[dict[str, str]]:
    rewards = {model["round"]: model for model in results["reward_models"]}
    return [
        {
            "policy": policy["name"],
            "score of SFT": _estimate(policy.get("proxy_sft"), 2),
            "score": _estimate(policy.get("proxy"), 2),
            "win rate vs SFT": _estimate(policy["win_rate_vs_sft"], 3),
            "vs round before": _estimate(policy["win_rate_vs_previous"], 3),
            "KL to SFT (nats)": _estimate(policy["kl"], 2),
            "reward model on held-out labels": _estimate(reward.get("label_accuracy"), 3),
        }
        for policy in results["policies"]
        for reward in [rewards.get(policy["name"], {})]
    ]


def publish_runs(root: Path, execution: str) -> None:
    """The page `mlflow-runs`: the MLflow runs of this execution so far, and how to open them.

    Links need the address of MLflow's UI (`tasks.tracking.links.mlflow_ui`).
    """
    if runs := mlflow_runs(root, execution):
        page = runs_in_markdown(runs, tracking_uri(root), mlflow_ui(root))
        with left_out_while_away("page mlflow-runs"):
            create_markdown_artifact(
                page, key="mlflow-runs", description="The stages of this run in MLflow, so far."
            )


def runs_in_markdown(runs: Mapping[str, str], uri: str, address: str | None) -> str:
    """A table of the runs, and above it the command that opens MLflow where no UI is known."""
    rows = "".join(
        f"| {stage} | {f'[{run}]({run_link(address, run)})' if address else f'`{run}`'} |\n"
        for stage, run in runs.items()
    )
    table = f"| stage | MLflow run |\n|---|---|\n{rows}"
    if address is not None:
        return table
    return f"`make ui` shows them (or `mlflow ui --backend-store-uri {redact(uri)}`).\n\n{table}"


def artifact_key(stage: str) -> str:
    """`ppo-r1` of `ppo@r1`: Prefect's keys have lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", stage.lower()).strip("-")


@contextmanager
def left_out_while_away(what: str) -> Iterator[None]:
    """Skip what Prefect's server should show if the server cannot be reached."""
    try:
        yield
    except httpx.HTTPError as error:
        if not is_absence(error):
            raise
        get_run_logger().warning("Prefect's server is away; left out: %s (%s)", what, error)


def _estimate(estimate: Mapping[str, float] | None, digits: int) -> str:
    """`0.851 [0.829, 0.873]`."""
    if estimate is None or estimate["mean"] is None:
        return NONE
    mean = f"{estimate['mean']:.{digits}f}"
    if "low" not in estimate or "high" not in estimate:
        return mean
    return f"{mean} [{estimate['low']:.{digits}f}, {estimate['high']:.{digits}f}]"
