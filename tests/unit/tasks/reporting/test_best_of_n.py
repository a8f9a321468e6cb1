"""Whether PPO is worth it: the page's sentence, table and drawing of best-of-n."""

import json
import re
from pathlib import Path

import pytest

from tasks.reporting.best_of_n import worth
from tests.unit.tasks.reporting.conftest import ROUNDS, report
from tests.unit.tasks.reporting.report_world import write_world
from tests.unit.tasks.reporting.test_against_kl import names_on_lines


def best_of_n(text: str) -> str:
    """The page's section on best-of-n; empty where there is none."""
    return text.partition("<h2>Is PPO worth it?</h2>")[2].partition("</section>")[0]


def test_whether_ppo_is_worth_it_stands_in_one_sentence(world: Path) -> None:
    """r3 at 4.5 + 3 x 1.4; of SFT the best of 64 by its reward model at 4.4 + 6 x 0.6."""
    assert (
        "Yes: one response of r3 reaches gold 8.70, the best of 64 of SFT by the same reward "
        "8.00; the difference is +0.70 [+0.20, +1.20] on 512 prompts."
    ) in best_of_n(report(world))


def test_the_sentence_has_the_name_of_the_round_as_it_is() -> None:
    estimate = {"mean": -0.001, "low": -0.5, "high": 0.5, "n": 128}
    found = {"gain": estimate, "policy": "no-kl", "samples": 64, "judge": "gold"}
    said = worth(found | {"ppo": estimate, "best": estimate})
    assert "one response of no-kl reaches gold 0.00, the best" in said
    assert "the difference is +0.00 [\N{MINUS SIGN}0.50, +0.50] on 128 prompts." in said


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.2, 0.4, "Undecided"), (-0.8, -0.2, "No"), (0.0, 1.0, "Und")]
)
def test_ppo_is_only_worth_it_where_the_whole_interval_says_so(
    tmp_path: Path, low: float, high: float, verdict: str
) -> None:
    write_world(tmp_path)
    path = tmp_path / "results/best_of_n/metrics.json"
    record = json.loads(path.read_text())
    record["gain"] = {"mean": (low + high) / 2, "low": low, "high": high, "n": 128}
    path.write_text(json.dumps(record))
    assert f'<p class="lead">{verdict}' in best_of_n(report(tmp_path))


def test_best_of_n_has_a_row_for_each_n_and_one_of_the_policies(world: Path) -> None:
    table = best_of_n(report(world)).partition("<tbody>")[2]
    rows = re.findall(r"<tr[^>]*><th>(.*?)</th><td>(.*?)</td>(.*?)</tr>", table, re.S)
    bounds = [(name, kl) for name, kl, _ in rows]
    assert bounds == [("1", "≤ 0.00"), ("8", "≤ 1.20"), ("64", "≤ 3.17"), ("PPO", "5.10")]
    means = re.findall(r"<b>(.*?)</b>", rows[2][2])
    # Gold by each round's reward model; win rate and proxy by that of the last round.
    assert means == ["5.60", "6.80", "8.00", "0.860", "2.40"]
    assert re.findall(r"<b>(.*?)</b>", rows[3][2])[:3] == ["5.90", "7.30", "8.70"]


def test_best_of_n_lies_above_the_bound_of_its_kl(world: Path) -> None:
    """Axes of gold from 4 to 10 (170 up to 22) and of KL from 0 to 6 (38 to 332)."""
    drawing = best_of_n(report(world)).partition("Gold against KL")[2].partition("</svg>")[0]
    lines = re.findall(r'<polyline class="line" points="([^"]*)"', drawing)
    assert len(lines) == len(ROUNDS)
    x, y = map(float, lines[-1].split()[-1].split(","))
    assert x == pytest.approx(38 + 294 * 3.1745 / 6, abs=0.06)
    assert y == pytest.approx(170 - 148 * (8.0 - 4) / 6, abs=0.06)
    assert "best of n, r3, n = 64: gold 8.00, KL at most 3.17" in drawing


def test_the_names_of_a_single_round_keep_off_its_line(tmp_path: Path) -> None:
    write_world(tmp_path, ("r1",))
    text = best_of_n(report(tmp_path, ("r1",)))
    for title in ("Gold", "Win rate", "Proxy"):
        drawing = text.partition(f"<b>{title} against KL</b>")[2].partition("</svg>")[0]
        assert "r1, n = 64" in drawing
        assert names_on_lines(drawing) == [], title


def test_without_gold_best_of_n_says_that_the_reward_model_judges(tmp_path: Path) -> None:
    write_world(tmp_path, gold=False)
    section = best_of_n(report(tmp_path))
    assert "No, as far as the reward model that both were chosen by can tell" in section
    assert "This data has no rubric" in section
    assert section.count("<svg") == 1
    assert "win rate" not in section.partition("<table>")[2]


def test_before_best_of_n_has_run_the_page_does_without_it(tmp_path: Path) -> None:
    write_world(tmp_path)
    (tmp_path / "results/best_of_n/metrics.json").unlink()
    assert best_of_n(report(tmp_path)) == ""
