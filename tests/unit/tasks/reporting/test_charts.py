"""The page's charts: every point, axis and label lies where its numbers say."""

import re
from pathlib import Path

import pytest

from tasks.reporting.charts import nice_ticks
from tasks.reporting.data import read_curves
from tests.unit.tasks.reporting.conftest import ROUNDS, report
from tests.unit.tasks.reporting.report_world import chained, write_world


def test_a_new_column_of_history_appears_among_the_folded_curves(tmp_path: Path) -> None:
    write_world(tmp_path)
    assert "All other PPO metrics" not in report(tmp_path)
    for key in ROUNDS:
        history = tmp_path / "results/ppo" / key / "history.csv"
        header, *rows = history.read_text().splitlines()
        rows = [f"{row},{number}" for number, row in enumerate(rows)]
        history.write_text("\n".join([f"{header},policy/<new>", *rows]) + "\n")
    text = report(tmp_path)
    section = text.partition("<h2>Training curves</h2>")[2].partition("</section>")[0]
    folded = section.partition("<details><summary>All other PPO metrics")[2]
    folded = folded.partition("</details>")[0]
    assert "policy/&lt;new&gt;</b>" in folded
    assert "<new>" not in text
    # One chart with a line per round; what is drawn above is not drawn again.
    assert folded.count("<svg") == 1
    assert folded.count("<polyline") == len(ROUNDS)
    # 0 to 23 on an axis from 0 at the bottom (130 - 20) to 30 at the top (22).
    first = folded.partition('points="')[2].partition('"')[0].split()
    heights = [float(point.partition(",")[2]) for point in first]
    assert heights[0] == 110.0
    assert heights[-1] == pytest.approx(110 - 88 * 23 / 30, abs=0.06)


def test_gold_lies_above_its_kl(world: Path) -> None:
    """SFT at 0 nats and 4.4, r3 at 5.1 nats and 8.6: two corners of axes 0 to 6 and 4 to 10."""
    drawing = report(world).partition("<b>Gold against KL</b>")[2].partition("</svg>")[0]
    # Across from 38 (0) to 332 (6 nats); up from 170 (4) to 22 (10).
    assert 'cx="38.0" cy="160.1"' in drawing
    assert 'cx="287.9" cy="56.5"' in drawing
    assert drawing.count("<circle") == 1 + len(ROUNDS)


@pytest.mark.parametrize("highest", [0.0008, 0.012, 1234.5], ids=["small", "usual", "large"])
def test_no_label_of_an_axis_is_cut_off_at_the_left(tmp_path: Path, highest: float) -> None:
    """A digit is at most 6.4 wide at the 10.5 pixels of these labels."""
    write_world(tmp_path)
    for key in ROUNDS:
        history = tmp_path / "results/ppo" / key / "history.csv"
        history.write_text(f"step,policy/clip_fraction\n0,0\n1,{highest}\n")
    text = report(tmp_path).partition("<b>Clip fraction</b>")[2].partition("</svg>")[0]
    labels = re.findall(r'<text class="tick end" x="(\d+)"[^>]*>([^<]+)', text)
    assert len(labels) > 2
    assert all(int(x) - 6.4 * len(label) >= 0 for x, label in labels), labels


@pytest.mark.parametrize("shares", [(0, 0), (0.2, 0.25)], ids=["always zero", "never zero"])
def test_the_axis_of_the_clip_fraction_begins_at_zero(
    tmp_path: Path, shares: tuple[float, float]
) -> None:
    write_world(tmp_path)
    for key in ROUNDS:
        history = tmp_path / "results/ppo" / key / "history.csv"
        history.write_text(f"step,policy/clip_fraction\n0,{shares[0]}\n1,{shares[1]}\n")
    text = report(tmp_path).partition("<b>Clip fraction</b>")[2].partition("</svg>")[0]
    labels = re.findall(r'<text class="tick end"[^>]*>([^<]+)', text)
    assert min(map(float, labels)) == 0


def test_each_round_has_a_reliability_plot_with_a_dot_where_the_bin_lies(world: Path) -> None:
    text = report(world)
    drawings = re.findall(r"<b>Accuracy by confidence, (r\d)</b> 500 held-out pairs", text)
    assert drawings == list(ROUNDS)
    # Across from 38 (one half) to 332 (1); up from 170 (0.4) to 22 (1).
    assert text.count('cx="96.8" cy="145.3"') == len(ROUNDS)
    assert text.count('cx="273.2" cy="71.3"') == len(ROUNDS)
    assert text.count("confidence 0.90, accuracy 0.80 (from 0.70 to 0.85), 380 pairs") == len(
        ROUNDS
    )


def test_the_rounds_lie_one_after_the_other_on_the_axis_of_steps(world: Path) -> None:
    curves = read_curves(world, ROUNDS)
    assert curves.spans == (("r1", 0.0, 24.0), ("r2", 24.0, 48.0), ("r3", 48.0, 72.0))
    steps = [step for step, _ in curves.by_metric["objective/kl"].points]
    assert steps == [float(step) for step in range(72)]
    variance = curves.by_metric["value/explained_variance"].points
    assert len(variance) == 69  # empty at the first step of each round


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (4.1, 8.7, [4.0, 6.0, 8.0, 10.0]),
        (-0.01, 5.9, [0.0, 2.0, 4.0, 6.0]),
        (-0.03, 0.11, [-0.05, 0.0, 0.05, 0.1, 0.15]),
        (3.0, 3.0, [2.5, 2.75, 3.0, 3.25, 3.5]),
    ],
)
def test_ticks_are_round_numbers_that_cover_the_range(
    low: float, high: float, expected: list[float]
) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high"), [(3e16, 3e16), (-2e20, -2e20), (1e300, 1.0001e300)])
def test_a_metric_that_has_gone_astray_does_not_end_the_report(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert len(set(ticks)) == len(ticks) >= 3


@pytest.mark.parametrize("count", [3, 24])
def test_names_and_first_steps_of_rounds_do_not_run_into_each_other(
    tmp_path: Path, count: int
) -> None:
    """A digit is at most 6.4 wide at the 10.5 pixels of these labels."""
    rounds = tuple(f"r{number}" for number in range(1, count + 1))
    write_world(tmp_path, rounds)
    text = report(tmp_path, rounds, params=chained(rounds))
    drawing = text.partition("<b>Entropy</b>")[2].partition("</svg>")[0]
    for style, place in (("tick middle", 0.5), ("tick", 0.0)):
        found = re.findall(rf'<text class="{style}" x="([\d.]+)"[^>]*>([^<]+)', drawing)
        starts = [float(x) - place * 6.4 * len(label) for x, label in found]
        ends = [float(x) + (1 - place) * 6.4 * len(label) for x, label in found]
        assert len(found) == 3 if count == 3 else len(found) >= 6
        assert all(end < start for end, start in zip(ends, starts[1:], strict=False)), found
    # How many steps there are, at the right edge, where the last round's first leaves room.
    last = re.search(r'<text class="tick end" x="332.0"[^>]*>(\d+)', drawing)
    if count == 3:
        assert last is not None
        steps = re.findall(r'class="tick" [^>]*>(\d+)', drawing)
        assert int(last[1]) == 3 * (int(steps[1]) - int(steps[0]))
    assert last is None or ends[-1] < 332.0 - 6.4 * len(last[1])


def test_of_very_many_steps_what_can_be_seen_is_drawn(tmp_path: Path) -> None:
    """Three rounds of 20,000 steps on some 300 pixels: a level, and one step in each far off it."""
    write_world(tmp_path)
    for key in ROUNDS:
        values = [0.5 + 0.001 * (step % 7) for step in range(20_000)]
        values[12_345], values[12_346] = 1.0, 0.0
        rows = "".join(f"{step},{value}\n" for step, value in enumerate(values))
        history = tmp_path / "results/ppo" / key / "history.csv"
        history.write_text(f"step,policy/clip_fraction\n{rows}")
    text = report(tmp_path).partition("<b>Clip fraction</b>")[2].partition("</svg>")[0]
    lines = re.findall(r'<polyline class="line" points="([^"]*)"', text)
    assert len(lines) == len(ROUNDS)
    for number, line in enumerate(lines):
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        assert len(points) < 250
        # Every column of pixels has its part of the line, and the axis is from 0 to 1.
        assert len({int(x) for x, _ in points}) >= 97
        heights = {y for _, y in points}
        low, high = max(heights), min(heights)
        far = [x for x, y in points if y in (low, high)]
        # From 38 to 332 pixels: 4.9 for each 1,000 steps.
        assert far == pytest.approx([38 + 294 / 60_000 * (20_000 * number + 12_346)] * 2, abs=0.2)
        assert high == pytest.approx(22, abs=0.1)
        assert low == pytest.approx(170, abs=0.1)


@pytest.mark.parametrize(
    "rounds",
    [("r1", "r2"), ("round1", "round2"), ("fresh_labels_of_may", "and_of_june_and_july")],
    ids=["short", "usual", "long"],
)
def test_no_name_of_a_round_runs_into_a_chart_or_another_name(
    tmp_path: Path, rounds: tuple[str, ...]
) -> None:
    """Letters of bold type take at most 8.6 of the 13 pixels of these names, in the mean."""
    write_world(tmp_path, rounds)
    text = report(tmp_path, rounds, params=chained(rounds))
    drawing = text.partition("before and after retraining")[2].partition("</svg>")[0]
    names = re.findall(r'<text class="name" x="0" [^>]*>([^<]+)', drawing)
    edge = min(map(float, re.findall(r'<line class="grid[^"]*" x1="([1-9][\d.]*)"', drawing)))
    assert len(names) == len(rounds)
    assert all(8.6 * len(name) < edge < 230 for name in names), (names, edge)
    shown = zip(names, rounds, strict=True)
    assert all(name.removesuffix("…") == key[: len(name.removesuffix("…"))] for name, key in shown)
    # The names above the lineage stand in columns of 158 pixels: base, sft, then the rounds.
    titles = re.findall(r'<text class="column middle" x="(\d+)"[^>]*>([^<]+)', text)
    assert [int(x) for x, _ in titles] == [79, 237, 395, 553]
    assert all(8.6 * len(name) < 158 for _, name in titles), titles
