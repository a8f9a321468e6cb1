"""Which measures of two sides are subtracted."""

from pathlib import Path
from typing import Any

from tasks.comparing.differences import code, policies
from tasks.comparing.sides import Side
from tasks.tracing.records import Ran


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


def test_code_of_a_stage_that_one_side_has_not_run_yet_is_not_called_the_others_alone():
    sft = Ran("sft", {"rlhf/sft.py": "1"}, {}, {})
    ppo = Ran("ppo@r1", {"rlhf/ppo.py": "1"}, {}, {})
    whole = Side("a", "variant", "c", Path(), {}, False, (sft, ppo))
    waits = Side("b", "variant", "c", Path(), {}, False, (sft,), ("ppo@r1",))
    assert code(Path(), whole, waits) == code(Path(), waits, whole) == []
    another = Side("d", "variant", "c", Path(), {}, False, (sft,))
    assert code(Path(), whole, another) == ["rlhf/ppo.py (only A)"]
