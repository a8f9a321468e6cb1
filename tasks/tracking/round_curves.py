"""Curves over all rounds on one axis of steps, from what the stages of the rounds have published.

In MLflow each round's stage is a run of its own, whose steps start anew. The run of the whole
execution has the rounds one after the other, also those that DVC restored from its cache.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CURVES = {
    "reward": ("loss", "accuracy"),
    "ppo": (
        "objective/score",
        "objective/gold",
        "objective/kl",
        "objective/entropy",
        "objective/length",
        "objective/finished",
        "policy/approx_kl",
        "policy/clip_fraction",
        "value/explained_variance",
    ),
}
"""Stage -> its metrics by which whole executions are compared; its own run has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a metric."""

    key: str
    step: int
    value: float


def round_curves(root: Path, rounds: Sequence[str]) -> Iterator[Point]:
    """The curves of the rounds' `history.csv`, as `ppo/objective/kl`.

    Steps go on from those of the round before.
    """
    for stage, metrics in CURVES.items():
        end = 0
        for key in rounds:
            rows = _rows(root / "results" / stage / key / "history.csv")
            if not rows:
                continue
            first = int(rows[0]["step"])
            for row in rows:
                step = end + int(row["step"]) - first
                for metric in metrics:
                    value = float(row.get(metric) or "nan")
                    if math.isfinite(value):
                        yield Point(key=f"{stage}/{metric}", step=step, value=value)
            end = step + 1


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
