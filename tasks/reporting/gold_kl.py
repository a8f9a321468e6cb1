"""The report's chart of gold score against KL: what each round gained, and at what KL."""

from collections.abc import Mapping, Sequence
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


def gold_against_kl(policies: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Each policy as a dot with both intervals, joined in order; None without gold scores."""
    measured = [policy for policy in policies if policy["gold"] and policy["kl"]]
    if not measured:
        return None
    gold = [bound for policy in measured for bound in _bounds(policy["gold"])]
    across = nice_ticks(0.0, max(_bounds(policy["kl"])[1] for policy in measured))
    upwards = nice_ticks(min(gold), max(gold))
    x = Scale(0.0, across[-1], left_edge(upwards), WIDTH - RIGHT)
    y = Scale(upwards[0], upwards[-1], HEIGHT - BOTTOM, TOP)
    points = [(x(policy["kl"]["mean"]), y(policy["gold"]["mean"])) for policy in measured]
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    parts = [*grid_lines(upwards, x, y), *_labels_below(across, x)]
    parts.append(f'<polyline class="path" points="{line}"/>')
    parts += [_dot(policy, x, y) for policy in measured]
    return svg(WIDTH, HEIGHT, TITLE, parts)


def _labels_below(ticks: Sequence[float], x: Scale) -> list[str]:
    return [
        f'<text class="tick middle" x="{x(tick):.1f}" y="{HEIGHT - 6:.1f}">'
        f"{tick_label(tick, ticks)}</text>"
        for tick in ticks
    ]


def _dot(policy: Mapping[str, Any], x: Scale, y: Scale) -> str:
    gold, kl, name = policy["gold"], policy["kl"], escape(policy["name"])
    px, py = x(kl["mean"]), y(gold["mean"])
    (bottom, top), (left, right) = _bounds(gold), _bounds(kl)
    # Beside the dot, on the side that has room.
    side, anchor = (-8, "end") if px > (x.start + x.end) / 2 else (8, "begin")
    return (
        f'<g class="held"><title>{name}: gold {gold["mean"]:.2f}, KL {kl["mean"]:.2f}</title>'
        f'<line class="whisker" x1="{px:.1f}" x2="{px:.1f}" '
        f'y1="{y(bottom):.1f}" y2="{y(top):.1f}"/>'
        f'<line class="whisker" x1="{x(max(left, 0.0)):.1f}" x2="{x(right):.1f}" '
        f'y1="{py:.1f}" y2="{py:.1f}"/>'
        f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="4"/>'
        f'<text class="dot-name {anchor}" x="{px + side:.1f}" y="{py - 6:.1f}">{name}</text></g>'
    )


def _bounds(estimate: Mapping[str, float]) -> tuple[float, float]:
    mean = estimate["mean"]
    return estimate.get("low", mean), estimate.get("high", mean)
