"""The content of an execution's parent run in MLflow; written to local files first, like spools.

`.work/executions/<id>/`:

    start.json   name, parameters and commit, as they were when the execution started
    rounds.json  results and curves of the rounds that have ended so far; replaced after each
    end.json     how it ended, its results, curves and seconds, and the data sets that were read;
                 rewritten by each call that ends it
    report.html  the report of the results in end.json, without its link to reports/run.html
    sent.json    what has arrived where (written by the shipper)

The results are read from the pipeline's outputs, so it makes no difference whether a stage ran or
its outputs came from DVC's cache: an execution in which no stage ran has a parent run as well.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tasks.params.loading import Params, flatten
from tasks.params.redaction import redact, redact_values
from tasks.tracking.data_sets import data_sets
from tasks.tracking.round_curves import Point, round_curves
from tasks.tracking.run_names import run_name
from tasks.tracking.spool import EXECUTIONS_FOLDER, Status
from tasks.workspace.files import git_branch, git_commit, home, now_ms, read_json, write_json

RESULTS = Path("reports/results.json")
"""What `tasks.reporting.summary.build_results` returned when the last stage ran."""

FIELDS = ("gold", "win_rate_vs_sft", "kl")
"""The metrics of a policy by which runs are compared."""

_BESIDE = re.compile(rb'<p class="small"><a href="run\.html">.*?</p>\n')
"""The report's link to the page beside it: MLflow has none, and following it emptied its view."""


def record_start(
    root: Path, execution: str, params: Params, links: Mapping[str, str] | None = None
) -> None:
    """Record what the execution starts with; a later call for the same one changes nothing.

    Args:
        root: the workspace.
        execution: its id.
        params: its parameters.
        links: further tags, that lead to whoever started it.
    """
    folder = home(root) / EXECUTIONS_FOLDER / execution
    if (folder / "start.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    name = run_name(root, params)
    sections = {field.name: getattr(params, field.name) for field in fields(params)}
    rounds, final = sections.pop("rounds"), sections.pop("final")
    values = redact_values({key: asdict(value) for key, value in sections.items()})
    record = {
        "schema": 1,
        "execution": execution,
        "name": name,
        "started_ms": now_ms(),
        "params": {**flatten(values), "rounds": " ".join(rounds), "final": final},
        "tags": {
            "git.commit": git_commit(root),
            "git.branch": git_branch(root),
            "git.dirty": str("-dirty" in name).lower(),
            **(links or {}),
        },
    }
    write_json(folder / "start.json", record)


def record_rounds(
    root: Path, execution: str, rounds: Sequence[str], final: str, results: Mapping[str, Any]
) -> None:
    """Record what the rounds of a started execution have come to, while it goes on.

    An execution that stops before its end (people have to label, the data was blocked) keeps this.

    Args:
        root: the workspace.
        execution: its id.
        rounds: those that have ended, in their order.
        final: the one whose policy the test looks at; results end with it, as in `result_points`.
        results: from `tasks.reporting.summary.build_results`; of further rounds they may hold those
            of an earlier execution.
    """
    shown = rounds[: rounds.index(final) + 1] if final in rounds else rounds
    so_far = {
        "policies": [one for one in results["policies"] if one["name"] in ("sft", *shown)],
        "reward_models": [one for one in results["reward_models"] if one["round"] in shown],
        "test": None,
    }
    points = [*result_points(so_far), *round_curves(root, rounds)]
    record = {"recorded_ms": now_ms(), "points": [asdict(point) for point in points]}
    write_json(home(root) / EXECUTIONS_FOLDER / execution / "rounds.json", record)


def record_end(
    root: Path,
    execution: str,
    *,
    status: Status,
    message: str,
    seconds: float,
    results: Mapping[str, Any],
) -> None:
    """Record how a started execution ended.

    Args:
        root: the workspace.
        execution: its id.
        status: FINISHED if the pipeline is up to date; results are recorded only then, since the
            folders may otherwise hold those of an earlier execution.
        message: why it did not finish, empty if it did.
        seconds: of wall-clock time, all calls together.
        results: from `tasks.reporting.summary.build_results`.
    """
    folder = home(root) / EXECUTIONS_FOLDER / execution
    points, inputs = [Point(key="seconds", step=0, value=round(seconds, 1))], []
    report = root / "reports" / "index.html"
    (folder / "report.html").unlink(missing_ok=True)
    if status == "FINISHED":
        points += result_points(results)
        rounds = [model["round"] for model in results["reward_models"]]
        points += round_curves(root, rounds)
        inputs = data_sets(root, rounds)
        if report.exists():
            (folder / "report.html").write_bytes(_BESIDE.sub(b"", report.read_bytes()))
    record = {
        "status": status,
        "ended_ms": now_ms(),
        "message": redact(message),
        "points": [asdict(point) for point in points],
        "inputs": inputs,
    }
    write_json(folder / "end.json", record)


def record_published_results(root: Path, execution: str, *, seconds: float) -> None:
    """End an execution that no driver ends, by the results that its last stage has published."""
    results = read_json(root / RESULTS)
    assert results is not None
    record_end(root, execution, status="FINISHED", message="", seconds=seconds, results=results)


def result_points(results: Mapping[str, Any]) -> list[Point]:
    """The results as metrics: a curve over the rounds (step 0 is SFT), the test's and best-of-n's.

    A curve ends with the policy that the test looks at, so that its last value, which MLflow
    shows in its tables, is that of the final policy.
    """
    policies = results["policies"]
    test = results["test"]
    names = [policy["name"] for policy in policies]
    if test is not None and test["policy"] in names:
        names = names[: names.index(test["policy"]) + 1]
        policies = policies[: len(names)]
    points = [
        Point(key=key, step=step, value=policy[key]["mean"])
        for step, policy in enumerate(policies)
        for key in FIELDS
        if policy.get(key) is not None
    ]
    points += [
        Point(key="reward_accuracy", step=names.index(model["round"]), value=after["mean"])
        for model in results["reward_models"]
        if model["round"] in names and (after := model.get("accuracy_after")) is not None
    ]
    tested = test or {}
    points += [
        Point(key=f"test/{key}", step=0, value=tested[key]["mean"])
        for key in FIELDS
        if tested.get(key) is not None
    ]
    # `gain` is what PPO adds to the best of n: whether it is worth it.
    compared = results.get("best_of_n") or {}
    points += [
        Point(key=f"best_of_n/{key}", step=0, value=compared[key]["mean"])
        for key in ("best", "gain")
        if key in compared
    ]
    return points
