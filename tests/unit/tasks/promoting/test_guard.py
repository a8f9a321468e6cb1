"""Which warnings of the reward stage count against a candidate."""

from pathlib import Path

import pytest

from rlhf.intervals import Interval
from tasks.promoting.guard import clear, probed
from tasks.scoring.over_optimisation import Signals, alarms


@pytest.mark.parametrize(("high", "warnings"), [(0.616, 0), (0.6, 0), (0.587, 1)])
def test_an_accuracy_counts_where_its_whole_interval_is_below_the_limit(high: float, warnings: int):
    accuracy = Interval(mean=0.57, low=0.52, high=high, n=477)
    signals = clear(Signals(fresh_accuracy=accuracy, policy_wins=None), 0.6)
    assert len(alarms(signals, min_accuracy=0.6, of_sft=False)) == warnings


def test_the_share_of_wins_over_sft_counts_as_it_is():
    wins = Interval(mean=0.4, low=0.35, high=0.45, n=300)
    accuracy = Interval(mean=0.57, low=0.52, high=0.62, n=477)
    signals = clear(Signals(fresh_accuracy=accuracy, policy_wins=wins), 0.6)
    assert len(alarms(signals, min_accuracy=0.6, of_sft=False)) == 1


@pytest.mark.parametrize(("demands", "decided"), [("none none", False), ("none over", True)])
def test_one_probe_that_decides_is_enough(tmp_path: Path, demands: str, decided: bool):
    path = tmp_path / "results/reward/r1/probes.csv"
    path.parent.mkdir(parents=True)
    path.write_text("probe,demand\n" + "".join(f"p,{one}\n" for one in demands.split()))
    assert probed(tmp_path, "r1") == decided
