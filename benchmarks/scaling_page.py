"""The part of `docs/benchmarks.md` that says how the cost of PPO grows, and its plot."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure


def section(found: Mapping[str, Any]) -> list[str]:
    """Exponents by axis, the plot, and how they were measured."""
    load = found["load"]
    return [
        "## How the cost grows",
        "",
        "![CPU seconds over responses, tokens, parameters and rounds](benchmarks/scaling.svg)",
        "",
        "Written by `make bench` (benchmarks/scaling.py): our PPO iteration with a separate value "
        "model, packed rows and portable bits, one number at a time moved away from 0.6M "
        "parameters, 64 responses and 64 response tokens. A round is an iteration of PPO after one "
        "epoch of reward training on all pairs so far, 90 new ones a round. "
        f"{found['machine']}, one thread, CPU seconds, medians of {found['runs']} runs in turns; "
        f"load average {min(load):.1f} to {max(load):.1f}. Exponent: the slope of log seconds over "
        "the logarithm of the number, by least squares over all points, and between the last two.",
        "",
        "| what grows | from | to | seconds | exponent | between the last two |",
        "|---|---:|---:|---|---:|---:|",
        *(_row(axis, points) for axis, points in axes_of(found).items()),
        "",
    ]


def axes_of(found: Mapping[str, Any]) -> dict[str, list[tuple[float, list[float]]]]:
    """The points of each axis in rising order: the number, and the seconds of its runs."""
    axes: dict[str, list[tuple[float, list[float]]]] = {}
    for point in found["points"]:
        axes.setdefault(point["axis"], []).append((point["value"], point["seconds"]))
    return {axis: sorted(points) for axis, points in axes.items()}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of a power law through the points, by least squares of their logarithms."""
    logarithms = np.log(np.array(points))
    return float(np.polyfit(logarithms[:, 0], logarithms[:, 1], 1)[0])


def draw(found: Mapping[str, Any], path: Path) -> None:
    """A panel for each axis, both scales logarithmic; bars from the least to the most."""
    axes = axes_of(found)
    with mpl.rc_context({"svg.hashsalt": "scaling", "font.size": 8}):
        figure = Figure(figsize=(9.6, 2.6), layout="constrained")
        panels = figure.subplots(1, len(axes), sharey=True)
        for panel, (axis, points) in zip(panels, axes.items(), strict=True):
            values = [value for value, _ in points]
            middle = [statistics.median(seconds) for _, seconds in points]
            bars = [
                [
                    centre - min(seconds)
                    for centre, (_, seconds) in zip(middle, points, strict=True)
                ],
                [
                    max(seconds) - centre
                    for centre, (_, seconds) in zip(middle, points, strict=True)
                ],
            ]
            panel.errorbar(values, middle, yerr=bars, marker="o", markersize=3, linewidth=1)
            panel.set(xscale="log", yscale="log", xlabel=axis)
            panel.set_xticks(values, [_number(value) for value in values])
            panel.minorticks_off()
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("CPU seconds")
        low, high = panels[0].get_ylim()
        ticks = [n * 10.0**power for power in range(-2, 6) for n in (1, 2, 5)]
        shown = [tick for tick in ticks if low <= tick <= high]
        panels[0].set_yticks(shown, [f"{tick:g}" for tick in shown])
        figure.savefig(path, format="svg", metadata={"Date": None})


def _row(axis: str, points: Sequence[tuple[float, list[float]]]) -> str:
    middle = [(value, statistics.median(seconds)) for value, seconds in points]
    (first, low), (last, high) = middle[0], middle[-1]
    return (
        f"| {axis} | {_number(first)} | {_number(last)} | {low:.2f} to {high:.2f} | "
        f"{slope(middle):.2f} | {slope(middle[-2:]):.2f} |"
    )


def _number(value: float) -> str:
    return f"{value / 1e6:.{0 if value >= 1e7 else 2}f}M" if value >= 1e5 else f"{value:.0f}"
