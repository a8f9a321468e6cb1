"""The report's charts as SVG: line panels, intervals, dots. No script, no plot library.

Colours are CSS classes, so one chart serves light and dark mode; every coordinate is written with
a fixed number of digits, so the same numbers give the same bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, log10
from operator import itemgetter

from markupsafe import Markup, escape

from tasks.reporting.data import ConfidenceBin, Curve, Curves

WIDTH, HEIGHT = 340.0, 190.0
SMALL = (240.0, 130.0)
"""Width and height of a chart of which many stand side by side."""
LEFT, RIGHT, TOP, BOTTOM = 38.0, 8.0, 22.0, 20.0
DIGIT = 6.4
"""Widest digit of an axis label, in pixels."""
GAP = 4.0
"""Least distance of two labels side by side, in pixels."""
BOLD = 9.0
"""Width of a letter of a round's name, in bold type of 13 pixels, and a little more."""
LONGEST_NAME = 16
"""Most letters of a round's name; longer ones are cut."""
NICE_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured value with its 95 % interval at the end of a round."""

    step: float
    mean: float
    low: float
    high: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels, linearly."""

    low: float
    high: float
    start: float
    """Pixel of `low`."""
    end: float
    """Pixel of `high`."""

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def line_panel(
    curves: Curves,
    curve: Curve,
    title: str,
    marks: Sequence[Mark] = (),
    *,
    from_zero: bool = False,
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> Markup:
    """One curve over all rounds, with the rounds as bands and optional marks with intervals."""
    width, height = size
    values = [value for _, value in curve.points] + [0.0] * from_zero
    values += [bound for mark in marks for bound in (mark.low, mark.high)]
    ticks = nice_ticks(min(values), max(values))
    end = curves.spans[-1][2]
    x = Scale(0.0, end, left_edge(ticks), width - RIGHT)
    y = Scale(ticks[0], ticks[-1], height - BOTTOM, TOP)
    parts = [*_bands(curves, x, y), *grid_lines(ticks, x, y)]
    parts += [_line(curve, first, last, x, y) for _, first, last in curves.spans]
    parts += [_mark(mark, x, y) for mark in marks]
    return svg(width, height, title, parts)


def interval_bar(mean: float, low: float, high: float, bounds: tuple[float, float]) -> Markup:
    """A small horizontal interval with its mean, for a table cell."""
    x = Scale(bounds[0], bounds[1], 3.0, 117.0)
    parts = [
        '<line class="rail" x1="3" x2="117" y1="7" y2="7"/>',
        f'<line class="whisker" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="7" y2="7"/>',
        f'<circle class="dot" cx="{x(mean):.1f}" cy="7" r="4"/>',
    ]
    return svg(120.0, 14.0, f"{mean:.3f}, from {low:.3f} to {high:.3f}", parts, style="bar")


def reliability_panel(bins: Sequence[ConfidenceBin], title: str) -> Markup:
    """Accuracy by the model's confidence; on the diagonal the model is calibrated."""
    x = Scale(0.5, 1.0, LEFT, WIDTH - RIGHT)
    ticks = nice_ticks(min(0.5, *(one.low for one in bins)), 1.0)
    y = Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = grid_lines(ticks, x, y)
    parts.append(
        f'<line class="grid half" x1="{x(0.5):.1f}" y1="{y(0.5):.1f}" '
        f'x2="{x(1.0):.1f}" y2="{y(1.0):.1f}"/>'
    )
    for sure in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        parts.append(
            f'<text class="tick middle" x="{x(sure):.1f}" y="{HEIGHT - 6:.1f}">{sure:.1f}</text>'
        )
    for one in bins:
        label = (
            f"confidence {one.confidence:.2f}, accuracy {one.accuracy:.2f} "
            f"(from {one.low:.2f} to {one.high:.2f}), {one.pairs} pairs"
        )
        parts.append(
            f'<g class="after"><title>{escape(label)}</title>'
            f'<line class="whisker" x1="{x(one.confidence):.1f}" x2="{x(one.confidence):.1f}" '
            f'y1="{y(one.low):.1f}" y2="{y(one.high):.1f}"/>'
            f'<circle class="dot" cx="{x(one.confidence):.1f}" cy="{y(one.accuracy):.1f}" r="4"/>'
            "</g>"
        )
    return svg(WIDTH, HEIGHT, title, parts)


def before_after(rows: Sequence[tuple[str, Mark | None, Mark]]) -> Markup:
    """Per round: the accuracy before retraining (hollow) and after (filled), with intervals."""
    marks = [mark for _, before, after in rows for mark in (before, after) if mark]
    low = min(0.5, *(mark.low for mark in marks))
    high = max(0.75, *(mark.high for mark in marks))
    ticks = nice_ticks(low, high)
    width, row_height = 460.0, 54.0
    names = [shortened(name, LONGEST_NAME) for name, _, _ in rows]
    left = max(36.0, BOLD * max(map(len, names)) + 8.0)
    height = 14.0 + row_height * len(rows) + 22.0
    # The number beside a whisker that ends at the right edge needs room.
    x = Scale(ticks[0], ticks[-1], left, width - 52.0)
    parts = []
    for tick in ticks:
        half = " half" if abs(tick - 0.5) < 1e-9 else ""
        parts.append(
            f'<line class="grid{half}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" '
            f'y1="8" y2="{height - 22:.1f}"/>'
            f'<text class="tick middle" x="{x(tick):.1f}" y="{height - 6:.1f}">'
            f"{tick_label(tick, ticks)}</text>"
        )
    for number, (name, (_, before, after)) in enumerate(zip(names, rows, strict=True)):
        y = 14.0 + row_height * number + row_height / 2
        if number:
            top = y - row_height / 2
            parts.append(f'<line class="grid" x1="0" x2="{width:.0f}" y1="{top}" y2="{top}"/>')
        parts.append(f'<text class="name" x="0" y="{y + 4:.1f}">{escape(name)}</text>')
        if before is not None:
            parts.append(_arrow(x(before.mean), x(after.mean), y))
            parts.append(_row_mark(before, x, y - 8, "before"))
        parts.append(_row_mark(after, x, y + 8 if before else y, "after"))
    title = "Accuracy of the reward model on the newest policy's pairs, before and after retraining"
    return svg(width, height, title, parts)


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers that cover the range from `low` to `high`."""
    size = max(abs(low), abs(high))
    if high - low < 1e-9 * max(1.0, size):
        # A value that is never negative, such as a share, keeps an axis without negative numbers.
        room = max(0.5, 1e-6 * size)
        low, high = (low if 0.0 <= low < 0.5 else low - room), high + room
    rough = high / count - low / count
    power = 10.0 ** floor(log10(rough))
    step = next(power * nice for nice in NICE_STEPS if power * nice >= rough * (1 - 1e-9))
    # A curve may overshoot slightly, rather than add another interval to the axis.
    first, last = floor(low / step + 0.05), ceil(high / step - 0.05)
    return [number * step for number in range(first, last + 1)]


def _bands(curves: Curves, x: Scale, y: Scale) -> list[str]:
    """The rounds as bands, and all steps; of names and steps those that do not touch others."""
    parts = []
    name_from = step_from = 0.0
    line = f"{y.start + BOTTOM - 6:.1f}"
    for number, (key, first, end) in enumerate(curves.spans):
        left, right = x(first), x(end)
        shade = "band" if number % 2 == 0 else "band odd"
        parts.append(
            f'<rect class="{shade}" x="{left:.1f}" y="{TOP - 14:.1f}" '
            f'width="{right - left:.1f}" height="{y.start - TOP + 14:.1f}"/>'
        )
        middle, half = (left + right) / 2, DIGIT * len(key) / 2
        if number == 0 or middle - half >= name_from:
            name_from = middle + half + GAP
            parts.append(
                f'<text class="tick middle" x="{middle:.1f}" y="{TOP - 4:.1f}">{escape(key)}</text>'
            )
        if left >= step_from:
            step = f"{first:.0f}"
            step_from = left + DIGIT * len(step) + GAP
            parts.append(f'<text class="tick" x="{left:.1f}" y="{line}">{step}</text>')
    steps = f"{curves.spans[-1][2]:.0f}"
    if x.end - DIGIT * len(steps) >= step_from:
        parts.append(f'<text class="tick end" x="{x.end:.1f}" y="{line}">{steps}</text>')
    return parts


def _line(curve: Curve, first: float, end: float, x: Scale, y: Scale) -> str:
    """The part of a curve that belongs to one round; rounds are not joined by a line."""
    points = [(x(step + 0.5), y(value)) for step, value in curve.points if first <= step < end]
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in _visible(points))
    return f'<polyline class="line" points="{line}"/>'


def _visible(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Of the points in one column of pixels the lowest and the highest: the others change nothing.

    With all steps of sixty rounds a report had 8 MB.
    """
    for _, column in groupby(points, key=lambda point: floor(point[0])):
        inside = list(column)
        yield from sorted({min(inside, key=itemgetter(1)), max(inside, key=itemgetter(1))})


def left_edge(ticks: Sequence[float]) -> float:
    """Left edge of a chart that leaves room for all labels of its vertical axis."""
    return max(LEFT, 7.0 + DIGIT * max(len(tick_label(tick, ticks)) for tick in ticks))


def grid_lines(ticks: Sequence[float], x: Scale, y: Scale) -> list[str]:
    """Horizontal lines with labels at their left."""
    return [
        f'<line class="grid" x1="{x.start:.0f}" x2="{x.end:.0f}" '
        f'y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="tick end" x="{x.start - 5:.0f}" y="{y(tick) + 3.5:.1f}">'
        f"{tick_label(tick, ticks)}</text>"
        for tick in ticks
    ]


def _mark(mark: Mark, x: Scale, y: Scale) -> str:
    px = x(mark.step)
    return (
        f'<g class="held"><title>{escape(mark.label)}</title>'
        f'<line class="whisker" x1="{px:.1f}" x2="{px:.1f}" y1="{y(mark.low):.1f}" '
        f'y2="{y(mark.high):.1f}"/>'
        f'<circle class="dot" cx="{px:.1f}" cy="{y(mark.mean):.1f}" r="4"/></g>'
    )


def _row_mark(mark: Mark, x: Scale, y: float, style: str) -> str:
    return (
        f'<g class="{style}"><title>{escape(mark.label)}</title>'
        f'<line class="whisker" x1="{x(mark.low):.1f}" x2="{x(mark.high):.1f}" '
        f'y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<circle class="dot" cx="{x(mark.mean):.1f}" cy="{y:.1f}" r="5"/>'
        f'<text class="value" x="{x(mark.high) + 8:.1f}" y="{y + 4:.1f}">{mark.mean:.3f}</text></g>'
    )


def _arrow(start: float, end: float, y: float) -> str:
    return (
        f'<line class="arrow" x1="{start:.1f}" y1="{y - 8:.1f}" x2="{end:.1f}" y2="{y + 8:.1f}"/>'
    )


def tick_label(tick: float, ticks: Sequence[float]) -> str:
    """The label of a tick, with as many digits as the distance between ticks needs."""
    step = ticks[1] - ticks[0]
    digits = max(0, -floor(log10(step) + 1e-9))
    if round(step, digits) != round(step, 9):
        digits += 1  # a step of 2.5
    text = f"{tick + 0.0:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def shortened(name: str, most: int) -> str:
    """A name of at most `most` letters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def svg(
    width: float, height: float, title: str, parts: Sequence[str], *, style: str = "chart"
) -> Markup:
    """An SVG element from parts with escaped texts; screen readers read out `title`."""
    # Every text in the parts was escaped when it was inserted.
    return Markup(
        f'<svg class="{style}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
