"""`python -m experiments.alarms`: how well signals without gold tell that PPO made a policy worse.

Over the second and later rounds of all runs that have a record, whatever experiment they belong to,
but for rounds that start anew from another policy than the one before: gold of that says nothing of
them. Writes `docs/results/alarms.md`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.descriptions import Experiment, available, load_experiment
from experiments.pages import FOLDER
from experiments.records import Record, read_records
from rlhf.intervals import proportion_interval

PAGE = "alarms.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round of PPO after the first, with what was known of it without gold."""

    run: str
    key: str
    retrained: bool
    """Its reward model was trained on labels of the policy that it starts from."""
    gold_change: float
    """Mean gold of its policy less that of the round before; held-out prompts."""
    accuracy: Mapping[str, float]
    """Of its reward model, on fresh held-out labels, before PPO: an interval."""
    wins: Mapping[str, float] | None
    """How often annotators chose the policy that it starts from over SFT: an interval."""
    kl: float
    """KL to SFT after PPO, in nats."""
    proxy: float
    """Mean reward by its own reward model after PPO."""

    @property
    def fell(self) -> bool:
        """Gold fell."""
        return self.gold_change < 0


SIGNALS: Mapping[str, Callable[[Round], float]] = {
    "accuracy on fresh labels": lambda one: -one.accuracy["mean"],
    "KL after PPO": lambda one: one.kl,
    "proxy after PPO": lambda one: one.proxy,
}
"""What a rule can look at; the higher, the more alarming."""

RULES: Mapping[str, tuple[str, Callable[[Round], bool]]] = {
    "the interval of the accuracy reaches one half": (
        "before PPO",
        lambda one: one.accuracy["low"] <= 0.5,
    ),
    "the accuracy is below 0.6 (`reward.min_fresh_accuracy`)": (
        "before PPO",
        lambda one: one.accuracy["mean"] < 0.6,
    ),
    "the whole interval of the accuracy is below 0.6 (the gate before production)": (
        "before PPO",
        lambda one: one.accuracy["high"] < 0.6,
    ),
    "the policy was chosen less often than SFT": (
        "before PPO",
        lambda one: one.wins is not None and one.wins["mean"] < 0.5,
    ),
    "KL above 6 nats": ("after PPO", lambda one: one.kl > 6),
    "KL above 9 nats": ("after PPO", lambda one: one.kl > 9),
    "proxy above 1.3": ("after PPO", lambda one: one.proxy > 1.3),
}
"""Rule -> when it can speak, and whether it does."""


def rounds_of(experiment: Experiment, record: Record) -> Iterator[Round]:
    """The rounds after the first of a run that ran to its end and whose signals were kept.

    Without those that did not start from the policy of the round before.
    """
    policies = record["policies"]
    if record["state"] != "Completed" or "signals" not in record:
        return
    overlay: Mapping[str, Any] = experiment.overlay(record["variant"], record["seed"])
    retrained = bool(overlay.get("reward", {}).get("retrain", True))
    for before, after in pairwise(policies[1:]):
        key, last = after["name"], f"models/rounds/{before['name']}/policy"
        if overlay.get("rounds", {}).get(key, {}).get("start", last) != last:
            continue
        signals = record["signals"].get(key, {})
        if signals.get("fresh_accuracy") and before["gold"] and after["gold"]:
            yield Round(
                run=f"{experiment.name} {record['variant']} {record['seed']}",
                key=key,
                retrained=retrained,
                gold_change=after["gold"]["mean"] - before["gold"]["mean"],
                accuracy=signals["fresh_accuracy"],
                wins=signals["policy_wins"],
                kl=after["kl"]["mean"],
                proxy=after["proxy"]["mean"],
            )


def all_rounds(root: Path) -> list[Round]:
    """Those of all experiments, by name; what two experiments have in common counts once."""
    return once(
        one
        for name in available(root)
        for record in read_records(root, name)
        for one in rounds_of(load_experiment(root, name), record)
    )


def once(rounds: Iterable[Round]) -> list[Round]:
    """The rounds without those that are another's by every figure: DVC restored them."""
    found: dict[tuple[float, ...], Round] = {}
    for one in rounds:
        found.setdefault((one.gold_change, one.accuracy["mean"], one.kl, one.proxy), one)
    return list(found.values())


def area_under_curve(fell: Sequence[float], rose: Sequence[float]) -> float | None:
    """Chance that a signal is higher where gold fell than where it rose, a tie counting half.

    The area under the receiver operating characteristic (Hanley and McNeil 1982). None where one
    of the two is missing.
    """
    if not fell or not rose:
        return None
    above = sum((a > b) + (a == b) / 2 for a in fell for b in rose)
    return above / (len(fell) * len(rose))


def page(rounds: Sequence[Round]) -> str:
    """The page as Markdown."""
    stale = [one for one in rounds if not one.retrained]
    lines = [
        "# Alarms without gold",
        "",
        "Written by `python -m experiments.alarms` from the records in `data/`: "
        f"{len(rounds)} rounds after the first, {len(stale)} of them with a reward model that was "
        "not trained on labels of the policy they start from. Gold fell in "
        f"{_count(one.fell for one in rounds)}, {_count(one.fell for one in stale)} of those.",
        "",
        "Intervals: Wilson, 95 %. They take rounds as independent, which rounds of a run are not.",
        "",
        "| rule | known | missed, of falls | false alarms, of rises | of the retrained |",
        "|---|---|---|---|---|",
    ]
    for rule, (when, speaks) in RULES.items():
        fell = [speaks(one) for one in rounds if one.fell]
        rose = [speaks(one) for one in rounds if not one.fell]
        fresh = [speaks(one) for one in rounds if one.retrained and not one.fell]
        cells = [rule, when, _share([not said for said in fell]), _share(rose), _share(fresh)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Area under the curve: the chance that a signal is more alarming in a round in which gold "
        "fell than in one in which it rose; 0.5 is chance.",
        "",
        "| signal | all rounds | those without retraining |",
        "|---|---|---|",
    ]
    for name, value in SIGNALS.items():
        lines.append(f"| {name} | {_area(value, rounds)} | {_area(value, stale)} |")
    lines += [
        "",
        "| run | round | retrained | accuracy | KL | proxy | gold change |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one.run} | {one.key} | {'yes' if one.retrained else 'no'} | "
        f"{one.accuracy['mean']:.3f} | {one.kl:.2f} | {one.proxy:.2f} | {one.gold_change:+.2f} |"
        for one in sorted(rounds, key=lambda one: one.gold_change)
    ]
    return "\n".join(lines) + "\n"


def _count(flags: Iterator[bool]) -> int:
    return sum(flags)


def _share(flags: Sequence[bool]) -> str:
    if not flags:
        return "–"
    over = proportion_interval(float(sum(flags)), len(flags))
    return f"{sum(flags)} of {len(flags)}, {over.low:.2f} to {over.high:.2f}"


def _area(value: Callable[[Round], float], rounds: Sequence[Round]) -> str:
    area = area_under_curve(
        [value(one) for one in rounds if one.fell], [value(one) for one in rounds if not one.fell]
    )
    return "–" if area is None else f"{area:.2f}"


def main() -> int:
    """Write the page; the exit code."""
    root = Path.cwd()
    path = root / FOLDER / PAGE
    path.write_text(page(all_rounds(root)), encoding="utf-8")
    sys.stdout.write(f"{path.relative_to(root)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
