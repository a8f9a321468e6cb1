"""What is kept of each run: its headline figures by round, in `docs/results/data`.

One small JSON file per run, written when the run has ended, however it ended. Nothing in it is
chosen afterwards: a run that stopped itself is there with its message.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from preferences.records import text_hash
from tasks.comparing.differences import CODE
from tasks.params.loading import Params, flatten
from tasks.reporting.run_results import read_results
from tasks.reporting.summary import read_outcomes
from tasks.workspace.dvc_lockfile import read_lock
from tasks.workspace.files import git_commit, write_json

FOLDER = Path("docs") / "results" / "data"
DIGITS = 4
SAMPLES = 3

Record = Mapping[str, Any]
Figures = Mapping[str, Mapping[int, Record]]
"""Variant -> seed -> the record of a run that ran to its end."""


def record_path(root: Path, experiment: str, variant: str, seed: int) -> Path:
    """Where the record of a run lies."""
    return root / FOLDER / experiment / f"{variant}-seed{seed}.json"


def keep_record(
    path: Path, workspace: Path, params: Params, *, variant: str, ended: tuple[str, str]
) -> None:
    """Write the record of the run in `workspace`; `ended` is the name of its state and its message.

    A path of this machine in the message is left out.
    """
    results = read_results(workspace, params)
    record = {
        "variant": variant,
        "seed": params.run.seed,
        "state": ended[0],
        "message": ended[1].replace(f"{workspace}/", ""),
        "commit": git_commit(workspace),
        "recipe": recipe(workspace),
        "seconds": round(sum(outcome["seconds"] for outcome in read_outcomes(workspace)), 1),
        "policies": results["policies"],
        "reward_models": results["reward_models"],
        "explained_variance": _explained_variance(workspace, params),
        "signals": signals(workspace, params.rounds),
        "test": results["test"],
        "best_of_n": results["best_of_n"],
        "samples": samples(workspace, params),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, _rounded(record))


def read_records(root: Path, experiment: str) -> list[Record]:
    """The records of all runs so far, by file name."""
    paths = sorted((root / FOLDER / experiment).glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def recipe(workspace: Path) -> str:
    """A digest of the code that the run's stages used, and of their params but for the seed."""
    used = {
        name: [
            {path: md5 for path, md5 in stage.deps.items() if path.endswith(CODE)},
            {key: value for key, value in flatten(stage.params).items() if key != "run.seed"},
        ]
        for name, stage in read_lock(workspace).items()
    }
    return text_hash(json.dumps(used, sort_keys=True, default=str))


def mean_of(policy: Mapping[str, Any] | None, name: str) -> float | None:
    """The mean of a policy's figure; None where nothing was measured."""
    value = (policy or {}).get(name)
    return None if value is None else float(value["mean"])


def signals(workspace: Path, rounds: Iterable[str]) -> dict[str, Any]:
    """Round -> what its labels said about reward model and policy, before its PPO."""
    found = {}
    for key in rounds:
        path = workspace / "results" / "reward" / key / "signals.json"
        if path.exists():
            found[key] = json.loads(path.read_text(encoding="utf-8"))
    return found


def samples(workspace: Path, params: Params) -> list[dict[str, Any]]:
    """Responses of the final policy to the first `SAMPLES` held-out prompts; empty without one."""
    path = workspace / "results" / "evaluate" / params.final / "samples.jsonl"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, SAMPLES)]
    return [{name: row[name] for name in ("prompt", "response", "gold")} for row in rows]


def _explained_variance(workspace: Path, params: Params) -> dict[str, float]:
    """Round -> share of the returns' variance that the value function explains at its end."""
    found = {}
    for key in params.rounds:
        path = workspace / "results" / "ppo" / key / "metrics.json"
        if path.exists():
            metrics = json.loads(path.read_text(encoding="utf-8"))
            if (value := metrics.get("value/explained_variance")) is not None:
                found[key] = value
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value
