"""The headline numbers of a run, which git keeps: the folder `metrics/`, for `dvc metrics`.

Short keys and one row for each policy, so that the tables of `dvc metrics show` and `dvc metrics
diff` fit a terminal; rounded, so that they can be read. Everything else is in `results.json`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_headline(folder: Path, results: Mapping[str, Any]) -> None:
    """Write `final.json` for the tested policy, and `rounds/<policy>.json` for each policy.

    Args:
        folder: created if missing.
        results: from `tasks.reporting.summary.build_results`.
    """
    rewards = {model["round"]: model for model in results["reward_models"]}
    test = results["test"] or {}
    (folder / "rounds").mkdir(parents=True)
    final: dict[str, float] = {}
    for policy in results["policies"]:
        name = policy["name"]
        reward = rewards.get(name, {})
        _write(
            folder / "rounds" / f"{name}.json",
            _measured(
                gold=_mean(policy, "gold", 2),
                win=_mean(policy, "win_rate_vs_sft", 3),
                win_previous=_mean(policy, "win_rate_vs_previous", 3),
                **_kl_and_reward(policy, reward),
                **_without_gold(policy, reward),
            ),
        )
        if name == test.get("policy"):
            final = _measured(
                gold=_mean(policy, "gold", 2),
                gold_test=_mean(test, "gold", 2),
                win=_mean(policy, "win_rate_vs_sft", 3),
                win_test=_mean(test, "win_rate_vs_sft", 3),
                **_kl_and_reward(policy, reward),
                **_without_gold(policy, reward),
            )
    _write(folder / "final.json", final)


def _kl_and_reward(policy: Mapping[str, Any], reward: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        "kl": _mean(policy, "kl", 2),
        "reward_before": _mean(reward, "accuracy_before", 3),
        "reward_after": _mean(reward, "accuracy_after", 3),
    }


def _without_gold(policy: Mapping[str, Any], reward: Mapping[str, Any]) -> dict[str, float | None]:
    """What stands in for gold, only where there is none: proxies, accuracy on held-out labels."""
    if policy["name"] == "sft" or policy.get("gold") is not None:
        return {}
    return {
        "proxy_sft": _mean(policy, "proxy_sft", 2),
        "proxy": _mean(policy, "proxy", 2),
        "labels": _mean(reward, "label_accuracy", 3),
    }


def _mean(values: Mapping[str, Any], field: str, digits: int) -> float | None:
    estimate = values.get(field)
    return None if estimate is None else round(estimate["mean"], digits)


def _measured(**numbers: float | None) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value is not None}


def _write(path: Path, numbers: Mapping[str, float]) -> None:
    path.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
