"""The plot of an experiment's page."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.descriptions import Experiment
from experiments.records import Figures, Record, mean_of


def draw(experiment: Experiment, figures: Figures, path: Path) -> None:
    """Gold by round, a line for each seed; final policies over √KL where they are fitted."""
    fitted = experiment.fit == "gold_over_kl"
    settings: Any = {"svg.hashsalt": experiment.name, "font.size": 9}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(10 if fitted else 6.4, 3.2), layout="constrained")
        axes = figure.subplots(1, 2 if fitted else 1, squeeze=False)[0]
        colours = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
        for number, (name, runs) in enumerate(figures.items()):
            colour = colours[number % len(colours)]
            style = ("-", "--", ":")[number // len(colours) % 3]
            _draw_variant(axes, name, list(runs.values()), colour, style)
        axes[0].set_ylabel("gold score (10 is ideal)")
        if fitted:
            axes[1].set_xlabel("√KL to SFT, final policies")
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].legend(frameon=False, fontsize=7)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_variant(axes: Any, name: str, runs: Sequence[Record], colour: Any, style: str) -> None:
    for number, record in enumerate(runs):
        policies = [policy for policy in record["policies"] if policy["gold"]]
        gold = [policy["gold"]["mean"] for policy in policies]
        bars = [
            [policy["gold"]["mean"] - policy["gold"]["low"] for policy in policies],
            [policy["gold"]["high"] - policy["gold"]["mean"] for policy in policies],
        ]
        axes[0].errorbar(
            [policy["name"] for policy in policies],
            gold,
            yerr=bars,
            color=colour,
            linestyle=style,
            linewidth=1,
            elinewidth=0.5,
            label=name if number == 0 else None,
        )
        kl = mean_of(record["policies"][-1], "kl")
        if len(axes) > 1 and gold and kl is not None:
            axes[1].plot(math.sqrt(max(0.0, kl)), gold[-1], "o", color=colour)
