"""Compares the default run with its controls: `docs/controls.md` and `docs/controls.svg`.

    make repro && make repro VARIANT=frozen_reward
    make repro VARIANT=no_kl && make repro VARIANT=no_kl_frozen
    python benchmarks/controls.py

Reads `reports/results.json` and the PPO curves of the main workspace and of each variant's.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
RUNS = {
    "default": "default",
    "frozen_reward": "first reward model frozen",
    "no_kl": "no KL penalty",
    "no_kl_frozen": "neither fresh labels nor KL penalty",
}
COLOURS = {
    "default": "#0b6e63",
    "frozen_reward": "#b8541a",
    "no_kl": "#7a2f8f",
    "no_kl_frozen": "#c2185b",
}


def workspace(name: str) -> Path:
    """Where a run's results lie."""
    return ROOT if name == "default" else ROOT / ".work" / "variants" / name


def results(name: str) -> dict[str, Any] | None:
    """The run's results.json, None where it has not run."""
    path = workspace(name) / "reports" / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def curve(name: str, metric: str) -> list[float]:
    """A PPO curve over all rounds, one value per iteration."""
    values: list[float] = []
    for path in sorted((workspace(name) / "results" / "ppo").glob("*/history.csv")):
        with path.open(encoding="utf-8") as file:
            values += [float(row[metric]) for row in csv.DictReader(file)]
    return values


def table(name: str, found: dict[str, Any]) -> list[str]:
    """The run's rows."""
    rewards = {row["round"]: row for row in found["reward_models"]}
    rows = []
    for policy in found["policies"]:
        reward = rewards.get(policy["name"], {})
        before, after = reward.get("accuracy_before"), reward.get("accuracy_after")
        accuracy = f"{before['mean']:.3f} → {after['mean']:.3f}" if before and after else "–"
        wins, gold, proxy = policy["win_rate_vs_sft"], policy["gold"], policy["proxy"]["mean"]
        rows.append(
            f"| {RUNS[name]} | {policy['name']} | {gold['mean']:.2f} "
            f"[{gold['low']:.2f}, {gold['high']:.2f}] | {wins['mean']:.3f} "
            f"[{wins['low']:.3f}, {wins['high']:.3f}] | {policy['kl']['mean']:.2f} | "
            f"{'–' if proxy is None else f'{proxy:.2f}'} | {accuracy} |"
        )
    test = found["test"]
    rows.append(
        f"| {RUNS[name]} | test ({test['policy']}) | {test['gold']['mean']:.2f} "
        f"[{test['gold']['low']:.2f}, {test['gold']['high']:.2f}] | "
        f"{test['win_rate_vs_sft']['mean']:.3f} [{test['win_rate_vs_sft']['low']:.3f}, "
        f"{test['win_rate_vs_sft']['high']:.3f}] | | | |"
    )
    return rows


def draw(names: list[str], path: Path) -> None:
    """Score of the reward model, gold and KL over PPO iterations."""
    matplotlib.rcParams |= {"svg.hashsalt": "controls", "font.size": 9}
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    panels = (
        ("objective/score", "reward model's score (its own units)"),
        ("objective/gold", "gold score"),
        ("objective/kl", "KL to SFT, nats per response"),
    )
    for axis, (metric, title) in zip(axes, panels, strict=True):
        for name in names:
            values = curve(name, metric)
            axis.plot(range(1, len(values) + 1), values, color=COLOURS[name], label=RUNS[name])
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("PPO iteration, three rounds")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    """Write the table and the plot from whatever has run."""
    found = {name: result for name in RUNS if (result := results(name)) is not None}
    if not found:
        sys.stderr.write("no results yet: run make repro and its variants first\n")
        return 2
    lines = [
        "# The default run and its controls",
        "",
        "Written by `python benchmarks/controls.py` after `make repro` and its variants. Held-out",
        "prompts, 512 each; intervals are 95 %. The first reward model frozen sees the labels of",
        "round 1 only, a third of what the default's last one sees; all else is equal. The proxy",
        "is the round's reward model's score in its own units, comparable only where it is frozen.",
        "Win rates of runs before 28 November 2026, here those of variants, have Wilson's",
        "interval, later ones Tango's (decisions/0022-intervals-with-ties.md): about 0.002 apart.",
        "",
        "![score, gold and KL over PPO iterations](controls.svg)",
        "",
        "| run | policy | gold | win rate against SFT | KL | proxy | reward model before → after |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in found.items():
        lines += table(name, result)
    (ROOT / "docs" / "controls.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw(list(found), ROOT / "docs" / "controls.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
