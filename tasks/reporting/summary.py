"""The numbers of a run in one object: `results.json` (deterministic) and `summary.json`.

`build_results` reads the metrics files of the rounds that exist. `build_summary` adds what differs
from run to run: times, memory, the machine. `docs/measures.md` describes the fields.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.reporting.without_gold import label_accuracy

SCHEMA = 1
POLICY_FIELDS = (
    "gold",
    "win_rate_vs_sft",
    "win_rate_vs_previous",
    "win_rate_judge",
    "kl",
    "proxy",
    "length",
    "finished",
    "distinct_2",
)
REWARD_FIELDS = (
    "pairs",
    "accuracy_before",
    "accuracy_after",
    "longer_wins",
    "ece",
    "nll",
    "heldout_accuracy",
)
ONLY_WHERE_NEEDED = ("sft", "served_rollouts", "started_elsewhere")
"""Parts of the results that most runs lack."""


class MetricsError(Exception):
    """A metrics file that is not what its stage writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a run took place."""

    cpu: str
    threads: int
    """Threads that the stages compute with."""


def build_results(
    root: Path,
    rounds: Sequence[str],
    *,
    seed: int,
    test_policy: str,
    started_elsewhere: Sequence[str] = (),
) -> dict[str, Any]:
    """The metrics of every round that has been evaluated so far, in the order of `rounds`.

    A stage that has not run yet is left out of its list; `test` and `best_of_n` are null until
    they have run.

    Args:
        root: the workspace.
        rounds: keys of all rounds, in their order.
        seed: of the run.
        test_policy: the round that was tested.
        started_elsewhere: rounds whose PPO began with another policy than they are compared with.

    Raises:
        MetricsError: a metrics file is not a JSON object.
    """
    results = root / "results"
    policies = [("sft", results / "baseline")]
    policies += [(key, results / "evaluate" / key) for key in rounds]
    rewards = [(key, results / "reward" / key) for key in rounds]
    test = read_metrics(results / "test")
    measured = [
        {"name": name, **_policy(metrics)}
        for name, folder in policies
        if (metrics := read_metrics(folder)) is not None
    ]
    served = [key for key in rounds if _from_server(results / "ppo" / key)]
    no_gold = any(policy["gold"] is None for policy in measured)
    return {
        "schema": SCHEMA,
        "seed": seed,
        **_heldout_loss(results / "sft"),
        **({"served_rollouts": served} if served else {}),
        **({"started_elsewhere": list(started_elsewhere)} if started_elsewhere else {}),
        "policies": measured,
        "reward_models": [
            {
                "round": key,
                **_pick(metrics, REWARD_FIELDS),
                **(
                    label_accuracy(metrics, read_metrics(results / "validate" / key))
                    if no_gold
                    else {}
                ),
            }
            for key, folder in rewards
            if (metrics := read_metrics(folder)) is not None
        ],
        "test": test and {"policy": test_policy, **_policy(test)},
        "best_of_n": read_metrics(results / "best_of_n"),
    }


def build_summary(
    results: Mapping[str, Any],
    *,
    commit: str,
    machine: Machine,
    total_seconds: float,
    execution: str | None,
    outcomes: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """`results` with times in seconds, peak memory in bytes and the machine.

    Args:
        results: from `build_results`.
        commit: the one that was checked out.
        machine: the one it ran on.
        total_seconds: wall-clock seconds of the whole execution.
        execution: id of the execution; what stages took that last ran in another is listed apart,
            as `earlier`, where they reached their end in it.
        outcomes: of the stages, each of its last run (`read_outcomes`).
    """
    ran = [outcome for outcome in outcomes if outcome["execution"] == execution]
    ran.sort(key=lambda outcome: int(outcome["ended_ms"]))
    earlier = [one for one in outcomes if one["execution"] != execution and one["code"] == 0]
    return {
        "schema": results["schema"],
        "seed": results["seed"],
        "commit": commit,
        "machine": {"cpu": machine.cpu, "threads": machine.threads, **_gpus(ran)},
        "seconds": {
            "total": round(total_seconds, 1),
            "stages": _took(ran),
            **({"earlier": _took(earlier)} if earlier else {}),
        },
        "peak_rss_bytes": {outcome["stage"]: outcome["peak_rss_bytes"] for outcome in ran},
        **{name: results[name] for name in ONLY_WHERE_NEEDED if name in results},
        "policies": results["policies"],
        "reward_models": results["reward_models"],
        "test": results["test"],
        "best_of_n": results.get("best_of_n"),
    }


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """`metrics.json` of a results folder, None where the stage has not run.

    Raises:
        MetricsError: the file is not a JSON object.
    """
    path = folder / "metrics.json"
    if not path.exists():
        return None
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MetricsError(f"{path}: expected JSON: {error}") from error
    if not isinstance(metrics, dict):
        raise MetricsError(f"{path}: expected a JSON object, found {type(metrics).__name__}")
    return metrics


def has_worked(root: Path, execution: str) -> bool:
    """Whether a stage has run in the execution: where none has, MLflow has nothing to show."""
    return any(outcome["execution"] == execution for outcome in read_outcomes(root))


def read_outcomes(root: Path) -> list[dict[str, Any]]:
    """How the last run of each stage ended, oldest first."""
    paths = (root / ".work").glob("*/outcome.json")
    outcomes = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(outcomes, key=lambda outcome: int(outcome["ended_ms"]))


def _took(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {outcome["stage"]: round(outcome["seconds"], 1) for outcome in outcomes}


def _gpus(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The models of the GPUs that stages computed on, as a part of the machine; none: nothing."""
    environments = (outcome.get("environment") or {} for outcome in outcomes)
    found = sorted({str(one["gpu"]) for one in environments if one.get("gpu")})
    return {"gpus": found} if found else {}


def cpu_name() -> str:
    """The processor's name, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _heldout_loss(folder: Path) -> dict[str, Any]:
    """SFT's loss on demonstrations that it was not trained on, where some were held out."""
    heldout = (read_metrics(folder) or {}).get("heldout")
    return {} if heldout is None else {"sft": {"heldout": heldout}}


def _from_server(folder: Path) -> bool:
    """Whether a server sampled the rollouts of a round's PPO."""
    return (read_metrics(folder) or {}).get("rollouts") == "server"


def _policy(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's fields; those that stand in for gold, or tell of a server, only where needed."""
    instead = ("proxy_sft",) if metrics.get("gold") is None else ()
    served = ("served_logprob_difference",) if "served_logprob_difference" in metrics else ()
    return _pick(metrics, (*POLICY_FIELDS, *instead, *served))


def _pick(metrics: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The fields in their order; null where a stage could not measure one."""
    return {field: metrics.get(field) for field in fields}
