"""The report's charts of a measure against KL: what rounds and best-of-n gain, and at what KL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from tasks.reporting.charts import (
    BOTTOM,
    DIGIT,
    GAP,
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
ABOVE, BESIDE, BELOW = -6.0, 4.0, 14.0
"""From a point down to the baseline of its name, in pixels."""
FARTHER = 12.0
"""How much farther the name of a curve may stand, in pixels."""
LETTER = 7.0
"""Width of a letter of a name, in pixels."""
UP, DOWN = 9.0, 3.0
"""How far a name reaches above and below its baseline, in pixels."""
RADIUS = 4.0
"""Of a dot, in pixels."""


Line = tuple[tuple[float, float], tuple[float, float]]
"""From one point to another, in pixels."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What a policy, or the best of n responses, reaches at its KL; both with their intervals."""

    name: str
    kl: Mapping[str, float]
    value: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name stands: a place on its baseline, and the class that aligns it there."""

    x: float
    y: float
    anchor: str


@dataclass(frozen=True, slots=True)
class Box:
    """What a name or a dot takes up, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: "Box") -> bool:
        """Whether the two have a place in common."""
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)

    def on(self, line: "Line") -> bool:
        """Whether the line passes through it."""
        (x, y), (to_x, to_y) = line
        first, last = 0.0, 1.0  # The part that is neither beside the box nor above or below it.
        for start, end, low, high in (
            (x, to_x, self.left, self.right),
            (y, to_y, self.top, self.bottom),
        ):
            if start == end:
                if not low < start < high:
                    return False
                continue
            enters, leaves = sorted(((low - start) / (end - start), (high - start) / (end - start)))
            first, last = max(first, enters), min(last, leaves)
        return first < last


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

    A name that would touch another one, or a dot, is left to the text that appears on pointing.

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
    last = [curve[-1] for curve in curves]
    lines = [line for curve in curves for line in pairwise(_points(curve, x, y))]
    lines += [_whisker(point, x, y) for point in (*policies, *last)]
    dots, best = _places(policies, last, lines, x, y)
    for curve, place in zip(curves, best, strict=True):
        parts += _curve(curve, measure, place, x, y)
    parts += [_dot(one, measure, at, x, y) for one, at in zip(policies, dots, strict=True)]
    return svg(WIDTH, HEIGHT, title, parts)


def _points(points: Sequence[Reached], x: Scale, y: Scale) -> list[tuple[float, float]]:
    return [(x(point.kl["mean"]), y(point.value["mean"])) for point in points]


def _line(points: Sequence[Reached], x: Scale, y: Scale) -> str:
    return " ".join(f"{px:.1f},{py:.1f}" for px, py in _points(points, x, y))


def _whisker(point: Reached, x: Scale, y: Scale) -> Line:
    """Of the value."""
    px, (bottom, top) = x(point.kl["mean"]), _bounds(point.value)
    return (px, y(bottom)), (px, y(top))


def _labels_below(ticks: Sequence[float], x: Scale) -> list[str]:
    """Each in the middle below its tick, the last no further right than the chart reaches."""
    labels = [(x(tick), tick_label(tick, ticks)) for tick in ticks]
    return [
        f'<text class="tick middle" x="{min(at, WIDTH - DIGIT * len(label) / 2):.1f}" '
        f'y="{HEIGHT - 6:.1f}">{label}</text>'
        for at, label in labels
    ]


def _curve(
    curve: Sequence[Reached], measure: str, place: Place | None, x: Scale, y: Scale
) -> list[str]:
    """The line, and at its last point the interval and the name."""
    last = curve[-1]
    px, (bottom, top) = x(last.kl["mean"]), _bounds(last.value)
    reached = f"{measure} {last.value['mean']:.2f}, KL at most {last.kl['mean']:.2f}"
    return [
        f'<polyline class="line" points="{_line(curve, x, y)}"/>',
        f'<g class="best"><title>best of n, {escape(last.name)}: {reached}</title>'
        f'<line class="whisker" x1="{px:.1f}" x2="{px:.1f}" '
        f'y1="{y(bottom):.1f}" y2="{y(top):.1f}"/>{_name(last.name, place)}</g>',
    ]


def _dot(point: Reached, measure: str, place: Place | None, x: Scale, y: Scale) -> str:
    value, kl, name = point.value, point.kl, escape(point.name)
    px, py = x(kl["mean"]), y(value["mean"])
    (bottom, top), (left, right) = _bounds(value), _bounds(kl)
    return (
        f'<g class="held"><title>{name}: {measure} {value["mean"]:.2f}, KL {kl["mean"]:.2f}</title>'
        f'<line class="whisker" x1="{px:.1f}" x2="{px:.1f}" '
        f'y1="{y(bottom):.1f}" y2="{y(top):.1f}"/>'
        f'<line class="whisker" x1="{x(max(left, 0.0)):.1f}" x2="{x(right):.1f}" '
        f'y1="{py:.1f}" y2="{py:.1f}"/>'
        f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="{RADIUS:.0f}"/>'
        f"{_name(point.name, place)}</g>"
    )


def _name(name: str, place: Place | None) -> str:
    if place is None:
        return ""
    return (
        f'<text class="dot-name {place.anchor}" x="{place.x:.1f}" y="{place.y:.1f}">'
        f"{escape(name)}</text>"
    )


def _places(
    policies: Sequence[Reached],
    curves: Sequence[Reached],
    lines: Sequence[Line],
    x: Scale,
    y: Scale,
) -> tuple[list[Place | None], list[Place | None]]:
    """Places of the names, those of the newest and SFT first; None where all are taken."""
    taken = []
    for one in policies:
        px, py = x(one.kl["mean"]), y(one.value["mean"])
        taken.append(Box(px - RADIUS, py - RADIUS, px + RADIUS, py + RADIUS))
    points, last = [*policies, *curves], len(policies) - 1
    order = [last, 0, len(points) - 1, *range(last, 0, -1), *range(len(points) - 1, last, -1)]
    found: list[Place | None] = [None] * len(points)
    for number in dict.fromkeys(order):
        heights = [ABOVE, BELOW] if number <= last else [BESIDE, ABOVE, BELOW]
        if lines and number > last:
            heights += [ABOVE - FARTHER, BELOW + FARTHER]
        found[number] = _free_place(points[number], heights, taken, lines, x, y) or _free_place(
            points[number], heights, taken, (), x, y
        )
    return found[: last + 1], found[last + 1 :]


def _free_place(
    point: Reached,
    heights: Sequence[float],
    taken: list[Box],
    lines: Sequence[Line],
    x: Scale,
    y: Scale,
) -> Place | None:
    """The first place beside the point that touches nothing taken; from then on it is taken."""
    px, py = x(point.kl["mean"]), y(point.value["mean"])
    right, left = (8.0, "begin"), (-8.0, "end")
    sides = (left, right) if px > (x.start + x.end) / 2 else (right, left)
    places = [Place(px + far, py + down, anchor) for down in heights for far, anchor in sides]
    for number, place in enumerate(places):
        width = LETTER * len(point.name)
        from_left = place.x - width * (place.anchor == "end")
        box = Box(from_left, place.y - UP, from_left + width, place.y + DOWN)
        inside = x.start <= box.left and box.right <= WIDTH - GAP and box.bottom <= y.start
        free = not any(map(box.touches, taken)) and not any(map(box.on, lines))
        if (number == 0 or inside) and free:
            taken.append(box)
            return place
    return None


def _bounds(estimate: Mapping[str, float]) -> tuple[float, float]:
    mean = estimate["mean"]
    return estimate.get("low", mean), estimate.get("high", mean)
