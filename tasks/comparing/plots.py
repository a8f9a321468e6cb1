"""The picture of a comparison: measures of each policy side by side, and PPO's curves."""

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
    path: Path, names: Sequence[str], results: Sequence[Mapping[str, Any]], folders: Sequence[Path]
) -> None:
    """Write the picture; a panel for which a side has nothing shows the other.

    Args:
        path: of the file; its ending says the format.
        names: of the two sides.
        results: as `build_results` returns them.
        folders: where the measurements of each side are, as below a root.
    """
    figure = Figure(figsize=(15.0, 8.0), layout="constrained")
    axes = list(figure.subplots(2, 3).flat)
    for panel, (measure, title) in zip(axes, MEASURES.items(), strict=False):
        _title(panel, title)
        for place, side in enumerate(results):
            _dots(panel, place, names[place], _points(side["policies"], "name", measure))
    panel = axes[len(MEASURES)]
    _title(panel, "accuracy of the reward model on newest pairs")
    for place, side in enumerate(results):
        points = _points(side["reward_models"], "round", "accuracy_after")
        _dots(panel, place, names[place], points)
    for panel, (metric, title) in zip(axes[len(MEASURES) + 1 :], CURVES.items(), strict=True):
        _title(panel, title)
        panel.set_xlabel("iterations of all rounds", fontsize=9)
        for place, folder in enumerate(folders):
            _curve(panel, place, names[place], folder, metric)
    for panel in axes:
        if panel.has_data():
            panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _curve(panel: Axes, place: int, name: str, folder: Path, metric: str) -> None:
    """A metric of PPO over all rounds, one after the other."""
    rounds = sorted(path.name for path in (folder / "results" / "ppo").glob("*"))
    curve = read_curves(folder, sorted(rounds, key=len)).by_metric.get(metric)
    if curve is not None:
        panel.plot(*zip(*curve.points, strict=True), color=COLOURS[place], label=name)


def _title(panel: Axes, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.3)


def _points(
    rows: Sequence[Mapping[str, Any]], name: str, measure: str
) -> list[tuple[str, float, float, float]]:
    """(name, mean, low, high) of the rows that have the measure with an interval."""
    found = [(row[name], row.get(measure)) for row in rows]
    return [(key, v["mean"], v["low"], v["high"]) for key, v in found if v and "low" in v]


def _dots(
    panel: Axes, place: int, name: str, points: Sequence[tuple[str, float, float, float]]
) -> None:
    if not points:
        return
    keys, means, lows, highs = zip(*points, strict=True)
    xs = [number + 0.16 * place for number in range(len(keys))]
    below = [mean - low for mean, low in zip(means, lows, strict=True)]
    above = [high - mean for mean, high in zip(means, highs, strict=True)]
    panel.errorbar(
        xs, means, yerr=(below, above), fmt="o", capsize=3, color=COLOURS[place], label=name
    )
    panel.set_xticks(range(len(keys)), keys)
