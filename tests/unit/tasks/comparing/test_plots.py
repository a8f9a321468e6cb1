"""The picture of a comparison puts equal names and rounds of both sides in one place."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D

from rlhf.intervals import hits_interval
from tasks.comparing.plots import COLOURS, picture

SIDES = ("A: one", "B: other")


def results(**gold: float) -> dict[str, Any]:
    """As `build_results` returns them: a policy for each name, with its gold."""
    policies = [
        {"name": name, "gold": {"mean": mean, "low": mean - 1, "high": mean + 1}}
        for name, mean in gold.items()
    ]
    models = [
        {"round": name, "accuracy_after": {"mean": mean / 10, "low": 0.0, "high": 1.0}}
        for name, mean in gold.items()
        if name != "sft"
    ]
    return {"policies": policies, "reward_models": models}


def points_of(line: Line2D) -> list[tuple[float, float]]:
    xs, ys = (np.asarray(values, dtype=float) for values in line.get_data())
    return [(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True) if not math.isnan(y)]


def shown(panel: Axes) -> list[dict[str, float]]:
    """Of each side the name of the tick nearest to a dot -> its value."""
    names = [label.get_text() for label in panel.get_xticklabels()]
    drawn = [box.lines[0] for box in panel.containers if isinstance(box, ErrorbarContainer)]
    return [{names[round(x)]: y for x, y in points_of(line)} for line in drawn if line is not None]


def test_each_value_stands_over_its_own_policy(tmp_path: Path) -> None:
    ours, theirs = results(sft=1.0, r1=2.0, r3=4.0), results(r1=5.0, r2=6.0, r3=7.0)

    figure = picture(SIDES, [ours, theirs], [tmp_path, tmp_path], ["r1", "r2", "r3"])

    assert shown(figure.axes[0]) == [
        {"sft": 1.0, "r1": 2.0, "r3": 4.0},
        {"r1": 5.0, "r2": 6.0, "r3": 7.0},
    ]
    drawn = {
        (box.get_label(), to_hex(box.lines[0].get_color()))
        for panel in figure.axes
        for box in panel.containers
        if isinstance(box, ErrorbarContainer) and box.lines[0] is not None
    }
    assert drawn == set(zip(SIDES, COLOURS, strict=True))
    assert COLOURS[0] != COLOURS[1]
    assert [one.get_text() for one in figure.axes[0].get_xticklabels()] == ["sft", "r1", "r2", "r3"]
    assert shown(figure.axes[3]) == [{"r1": 0.2, "r3": 0.4}, {"r1": 0.5, "r2": 0.6, "r3": 0.7}]


def test_a_policy_that_wins_or_loses_every_comparison_is_drawn(tmp_path: Path) -> None:
    """Rounding puts an end of each interval a bit inside of its mean."""
    for hits in ([1.0] * 512, [0.0] * 500):
        policies = [{"name": "r1", "win_rate_vs_sft": hits_interval(hits).as_dict()}]
        side = {"policies": policies, "reward_models": []}
        figure = picture(SIDES, [side, results()], [tmp_path, tmp_path], ["r1"])
        assert shown(figure.axes[1]) == [{"r1": hits[0]}]


def write_history(folder: Path, key: str, scores: list[float]) -> None:
    rows = [f"{step},{score}" for step, score in enumerate(scores)]
    path = folder / "results/ppo" / key / "history.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(["step,objective/score", *rows]) + "\n")


def test_a_curve_leaves_room_for_a_round_that_only_the_other_side_has(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    write_history(ours, "r1", [1.0, 2.0])
    write_history(ours, "r3", [3.0, 4.0])
    write_history(theirs, "r1", [5.0, 6.0, 7.0])
    write_history(theirs, "r2", [8.0])

    figure = picture(SIDES, [results(), results()], [ours, theirs], ["r1", "r2", "r3"])

    curves = [points_of(line) for line in figure.axes[4].lines]
    drawn = [np.isnan(np.asarray(line.get_ydata(), dtype=float)) for line in figure.axes[4].lines]
    assert figure.axes[5].lines[:] == [], "nobody has this curve"
    # r1 takes three iterations at most, r2 one: r3 begins at 4 on both sides.
    assert curves == [
        [(0.0, 1.0), (1.0, 2.0), (4.0, 3.0), (5.0, 4.0)],
        [(0.0, 5.0), (1.0, 6.0), (2.0, 7.0), (3.0, 8.0)],
    ]
    # No line over what a side never ran: the third iteration of r1, and r2; r3.
    assert [gaps.tolist() for gaps in drawn] == [
        [False, False, True, True, False, False],
        [False, False, False, False, True],
    ]
