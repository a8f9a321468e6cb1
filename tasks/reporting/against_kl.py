"""The report's charts of a measure against KL: what rounds and best-of-n gain, and at what KL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from tasks.reporting.charts import (
    BOTTOM,
    HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    grid_lines,
    left_edge,
    nice_ticks,
    svg,
    tick_label,
)

TITLE = "Gold against KL"


@dataclass(frozen=True, slots=True)
class Reached:
    """What a policy, or the best of n responses, reaches at its KL; both with their intervals."""

    name: str
    kl: Mapping[str, float]
    value: Mapping[str, float]


def gold_against_kl(policies: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Each policy as a dot with both intervals, joined in order; None without gold scores."""
    measured = [
        Reached(policy["name"], policy["kl"], policy["gold"])
        for policy in policies
        if policy["gold"] and policy["kl"]
    ]
    return against_kl(TITLE, "gold", measured) if measured else None


def against_kl(
    title: str, measure: str, policies: Sequence[Reached], curves: Sequence[Sequence[Reached]] = ()
) -> Markup:
    """Policies as dots, joined in order; each curve as a line that is named at its end.

    Args:
        title: what screen readers read out.
        measure: what the vertical axis shows.
        policies: one or more.
        curves: of best-of-n, from n = 1 on.
    """
    reached = [*policies, *(point for curve in curves for point in curve)]
    values = [bound for point in reached for bound in _bounds(point.value)]
    across = nice_ticks(0.0, max(_bounds(point.kl)[1] for point in reached))
    upwards = nice_ticks(min(values), max(values))
    x = Scale(0.0, across[-1], left_edge(upwards), WIDTH - RIGHT)
    y = Scale(upwards[0], upwards[-1], HEIGHT - BOTTOM, TOP)
    parts = [*grid_lines(upwards, x, y), *_labels_below(across, x)]
    parts.append(f'<polyline class="path" points="{_line(policies, x, y)}"/>')
    parts += [part for curve in curves for part in _curve(curve, measure, x, y)]
    parts += [_dot(policy, measure, x, y) for policy in policies]
    return svg(WIDTH, HEIGHT, title, parts)


def _line(points: Sequence[Reached], x: Scale, y: Scale) -> str:
    places = [(x(point.kl["mean"]), y(point.value["mean"])) for point in points]
    return " ".join(f"{px:.1f},{py:.1f}" for px, py in places)


def _labels_below(ticks: Sequence[float], x: Scale) -> list[str]:
    return [
        f'<text class="tick middle" x="{x(tick):.1f}" y="{HEIGHT - 6:.1f}">'
        f"{tick_label(tick, ticks)}</text>"
        for tick in ticks
    ]


def _curve(curve: Sequence[Reached], measure: str, x: Scale, y: Scale) -> list[str]:
    """The line, and at its last point the interval and the name."""
    last = curve[-1]
    px, (bottom, top) = x(last.kl["mean"]), _bounds(last.value)
    side, anchor = _free_side(px, x)
    reached = f"{measure} {last.value['mean']:.2f}, KL at most {last.kl['mean']:.2f}"
    return [
        f'<polyline class="line" points="{_line(curve, x, y)}"/>',
        f'<g class="best"><title>best of n, {escape(last.name)}: {reached}</title>'
        f'<line class="whisker" x1="{px:.1f}" x2="{px:.1f}" '
        f'y1="{y(bottom):.1f}" y2="{y(top):.1f}"/>'
        f'<text class="dot-name {anchor}" x="{px + side:.1f}" y="{y(last.value["mean"]) + 4:.1f}">'
        f"{escape(last.name)}</text></g>",
    ]


def _dot(point: Reached, measure: str, x: Scale, y: Scale) -> str:
    value, kl, name = point.value, point.kl, escape(point.name)
    px, py = x(kl["mean"]), y(value["mean"])
    (bottom, top), (left, right) = _bounds(value), _bounds(kl)
    side, anchor = _free_side(px, x)
    return (
        f'<g class="held"><title>{name}: {measure} {value["mean"]:.2f}, KL {kl["mean"]:.2f}</title>'
        f'<line class="whisker" x1="{px:.1f}" x2="{px:.1f}" '
        f'y1="{y(bottom):.1f}" y2="{y(top):.1f}"/>'
        f'<line class="whisker" x1="{x(max(left, 0.0)):.1f}" x2="{x(right):.1f}" '
        f'y1="{py:.1f}" y2="{py:.1f}"/>'
        f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="4"/>'
        f'<text class="dot-name {anchor}" x="{px + side:.1f}" y="{py - 6:.1f}">{name}</text></g>'
    )


def _free_side(px: float, x: Scale) -> tuple[int, str]:
    """Where a name beside a point has room: its distance, and the class that aligns it."""
    return (-8, "end") if px > (x.start + x.end) / 2 else (8, "begin")


def _bounds(estimate: Mapping[str, float]) -> tuple[float, float]:
    mean = estimate["mean"]
    return estimate.get("low", mean), estimate.get("high", mean)
