"""The picture of a comparison: measures of each policy side by side, and PPO's curves."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from tasks.reporting.data import read_curves

MEASURES = {
    "gold": "gold score",
    "win_rate_vs_sft": "win rate against SFT",
    "kl": "KL to SFT, nats",
}
CURVES = {
    "objective/score": "reward model's score in PPO",
    "objective/kl": "KL in PPO, nats",
}
COLOURS = ("#0b6e69", "#b4541a")

Points = Mapping[str, tuple[float, float, float]]
"""Name of a policy or round -> mean, low and high."""


class PictureError(ValueError):
    """A picture cannot be written under this name; the message says which can."""


def require_format(path: Path) -> None:
    """Refuse a file whose ending names no format of pictures.

    Raises:
        PictureError: it does not.
    """
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lower().removeprefix(".") not in known:
        endings = ", ".join(f".{ending}" for ending in known)
        raise PictureError(
            f"--out {path}: expected a name that ends in one of {endings}; "
            f"found {path.suffix or 'no ending'}"
        )


def draw(
    path: Path,
    names: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    folders: Sequence[Path],
    rounds: Sequence[str],
) -> None:
    """Write the picture into a file; its ending says the format. The rest is as of `picture`."""
    figure = picture(names, results, folders, rounds)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def picture(
    names: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    folders: Sequence[Path],
    rounds: Sequence[str],
) -> Figure:
    """The picture; a panel for which a side has nothing shows the other.

    Args:
        names: of the two sides.
        results: as `build_results` returns them.
        folders: where the measurements of each side are, as below a root.
        rounds: those of both sides, in their order.
    """
    figure = Figure(figsize=(15.0, 8.0), layout="constrained")
    axes = list(figure.subplots(2, 3).flat)
    for panel, (measure, title) in zip(axes, MEASURES.items(), strict=False):
        _title(panel, title)
        _dots(panel, names, ("sft", *rounds), [_points(side, measure) for side in results])
    panel = axes[len(MEASURES)]
    _title(panel, "accuracy of the reward model on newest pairs")
    _dots(panel, names, rounds, [_accuracies(side) for side in results])
    for panel, (metric, title) in zip(axes[len(MEASURES) + 1 :], CURVES.items(), strict=True):
        _title(panel, title)
        panel.set_xlabel("iterations of all rounds", fontsize=9)
        _curves(panel, names, folders, rounds, metric)
    for panel in axes:
        if panel.has_data():
            panel.legend()
    return figure


def _curves(
    panel: Axes, names: Sequence[str], folders: Sequence[Path], rounds: Sequence[str], metric: str
) -> None:
    """A metric of PPO over all rounds, one after the other; a round begins where both have it."""
    lines: list[list[tuple[float, float]]] = [[] for _ in folders]
    offset = 0.0
    for key in rounds:
        sides = [read_curves(folder, [key]) for folder in folders]
        length = max(end for curves in sides for _, _, end in (*curves.spans, ("", 0.0, 0.0)))
        for line, curves in zip(lines, sides, strict=True):
            curve = curves.by_metric.get(metric)
            points = curve.points if curve is not None else ()
            line += [(offset + step, value) for step, value in points]
            if not points or points[-1][0] + 1 < length:
                # The line has a gap over the iterations that this side never ran.
                line.append((offset + length, math.nan))
        offset += length
    for name, line, colour in zip(names, lines, COLOURS, strict=True):
        if any(not math.isnan(value) for _, value in line):
            panel.plot(*zip(*line, strict=True), color=colour, label=name)


def _title(panel: Axes, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.3)


def _points(side: Mapping[str, Any], measure: str) -> Points:
    return _with_interval({row["name"]: row.get(measure) for row in side["policies"]})


def _accuracies(side: Mapping[str, Any]) -> Points:
    return _with_interval(
        {row["round"]: row.get("accuracy_after") for row in side["reward_models"]}
    )


def _with_interval(found: Mapping[str, Any]) -> Points:
    return {key: (v["mean"], v["low"], v["high"]) for key, v in found.items() if v and "low" in v}


def _dots(panel: Axes, names: Sequence[str], order: Sequence[str], sides: Sequence[Points]) -> None:
    """Each side's values over the names that one of them has, side by side."""
    keys = [key for key in order if any(key in points for points in sides)]
    for place, (name, points) in enumerate(zip(names, sides, strict=True)):
        if not points:
            continue
        xs = [number + 0.16 * place for number, key in enumerate(keys) if key in points]
        found = [points[key] for key in keys if key in points]
        # An interval of nothing but wins ends at 1 less a rounding, and a length is never below 0.
        below = [max(0.0, mean - low) for mean, low, _ in found]
        above = [max(0.0, high - mean) for mean, _, high in found]
        means = [mean for mean, _, _ in found]
        panel.errorbar(
            xs, means, yerr=(below, above), fmt="o", capsize=3, color=COLOURS[place], label=name
        )
    if keys:
        panel.set_xticks(range(len(keys)), keys)
