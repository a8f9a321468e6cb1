"""Which measures of two sides are subtracted."""

from typing import Any

from tasks.comparing.differences import policies


def side(share: float, judge: str) -> dict[str, Any]:
    interval = {"mean": share, "low": share - 0.1, "high": share + 0.1}
    policy = {"name": "r1", "win_rate_vs_sft": interval, "win_rate_judge": judge, "kl": {"mean": 2}}
    return {"policies": [policy]}


def test_win_rates_of_one_judge_are_subtracted():
    (row,) = policies(side(0.5, "gold"), side(0.75, "gold"))
    assert (row.name, row.note) == ("r1 win_rate_vs_sft", "+0.25")


def test_win_rates_of_different_judges_are_not():
    (row,) = policies(side(0.5, "gold"), side(0.75, "label.rules"))
    assert (row.first, row.second) == ("0.500 (0.400 to 0.600)", "0.750 (0.650 to 0.850)")
    assert row.note == "other judges: gold, label.rules"
