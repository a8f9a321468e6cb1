"""The names in the charts against KL: which are drawn, and that none touches another."""

import math
import re
from itertools import combinations, pairwise

import pytest

from tasks.reporting.against_kl import Reached, against_kl


def rounds(count: int) -> tuple[list[Reached], list[list[Reached]]]:
    """Policies that come close to each other, as gold and KL level off, and best of n for each."""
    names = ["SFT", *(f"r{number}" for number in range(1, count + 1))]
    policies = [
        Reached(
            name,
            {"mean": 2.4 * math.log1p(number), "low": 2.3 * number**0.5, "high": 2.6 * number**0.5},
            {"mean": 9 - 4 / (1 + number), "low": 8.8 - 4 / (1 + number), "high": 9.2},
        )
        for number, name in enumerate(names)
    ]
    curves = [
        [
            Reached(f"{name}, n = {n}", {"mean": kl}, {"mean": 5 + kl * (1 + number / 90)})
            for n, kl in ((1, 0.0), (64, 3.17))
        ]
        for number, name in enumerate(names[1:])
    ]
    return policies, curves


def boxes(drawing: str) -> dict[str, tuple[float, float, float, float]]:
    """Name -> left, top, right and bottom, with 6.5 pixels for a letter and 8 for its height."""
    found = {}
    text = r'<text class="dot-name (begin|end)" x="([^"]*)" y="([^"]*)">([^<]*)<'
    for anchor, x, y, name in re.findall(text, drawing):
        left = float(x) - 6.5 * len(name) * (anchor == "end")
        found[name] = (left, float(y) - 8, left + 6.5 * len(name), float(y))
    return found


def apart(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.parametrize("count", [1, 3, 12, 40])
@pytest.mark.parametrize("best", [True, False])
def test_no_name_touches_another_or_a_dot(count: int, best: bool) -> None:
    policies, curves = rounds(count)
    drawing = against_kl("Gold against KL", "gold", policies, curves if best else ())
    found = boxes(drawing)
    assert all(apart(*two) for two in combinations(found.values(), 2))
    dots = [
        (x - 3, y - 3, x + 3, y + 3)
        for x, y in (map(float, at) for at in re.findall(r'cx="([^"]*)" cy="([^"]*)"', drawing))
    ]
    assert len(dots) == count + 1
    assert all(apart(name, dot) for name in found.values() for dot in dots)


def test_sft_and_the_newest_are_named_and_whatever_has_room() -> None:
    policies, curves = rounds(12)
    drawing = against_kl("Gold against KL", "gold", policies, curves)
    found = boxes(drawing)
    assert {"SFT", "r1", "r2", "r12", "r12, n = 64"} <= set(found)
    # Who points at one without a name reads it.
    assert all(f"<title>r{number}: gold" in drawing for number in range(1, 13))
    few = boxes(against_kl("Gold against KL", "gold", *rounds(3)))
    assert {"SFT", "r1", "r2", "r3", "r3, n = 64"} <= set(few)


def test_no_label_of_a_wide_axis_is_cut_at_the_edge() -> None:
    far = Reached("r1", {"mean": 900.0, "low": 880.0, "high": 990.0}, {"mean": 1.0})
    drawing = against_kl("Gold against KL", "gold", [far])
    (width,) = re.findall(r'viewBox="0 0 ([0-9.]+) ', drawing)
    labels = re.findall(r'<text class="tick middle" x="([^"]*)" y="[^"]*">([^<]*)<', drawing)
    assert labels[-1][1] == "1000"
    assert all(float(x) + 6 * len(label) / 2 <= float(width) for x, label in labels)


def names_on_lines(drawing: str) -> list[str]:
    """The names through which a line of best-of-n passes, at one of many points along it."""
    on = []
    for points in re.findall(r'class="line" points="([^"]*)"', drawing):
        line = [tuple(map(float, point.split(","))) for point in points.split()]
        along = [
            (x + (to_x - x) * n / 500, y + (to_y - y) * n / 500)
            for (x, y), (to_x, to_y) in pairwise(line)
            for n in range(501)
        ]
        on += [
            name
            for name, (left, top, right, bottom) in boxes(drawing).items()
            if any(left < x < right and top < y < bottom for x, y in along)
        ]
    return on


@pytest.mark.parametrize("gold", [5.6, 7.2, 8.1, 8.8])
@pytest.mark.parametrize("fall", [0.0, 0.4])
def test_no_name_of_a_single_round_lies_on_its_line(gold: float, fall: float) -> None:
    """The best of n rises from 5 to 8, and falls again where the reward model is exploited."""

    def near(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 0.3, "high": mean + 0.3}

    def best(n: int) -> Reached:
        kl = math.log(n) - (n - 1) / n
        reached = 8 - 3 * math.exp(-1.5 * kl) - fall * max(0.0, kl - 1.5)
        return Reached(f"r1, n = {n}", {"mean": kl}, near(reached))

    curve = [best(2**power) for power in range(7)]
    policies = [Reached("SFT", {"mean": 0.0}, near(5.0)), Reached("r1", near(3.05), near(gold))]
    drawing = against_kl("Gold against KL", "gold", policies, [curve])
    assert set(boxes(drawing)) == {"SFT", "r1", "r1, n = 64"}
    assert names_on_lines(drawing) == []
