"""Which warnings of the reward stage count against a candidate."""

import json
from pathlib import Path

import pytest

from rlhf.intervals import Interval
from tasks.params.loading import load_params
from tasks.promoting.guard import clear, findings, probed
from tasks.scoring.over_optimisation import Signals, alarms
from tasks.scoring.probe_tables import probe_table, write_probes
from tasks.scoring.reward_probes import Probe


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


def test_a_probe_that_fails_for_want_of_pairs_says_so(tmp_path: Path):
    """3 of 3 disagreeing pairs are right, and 10 are needed to tell: the limit is reached."""
    right = Interval(mean=1.0, low=0.439, high=1.0, n=3)
    wrong = Interval(mean=0.2, low=0.1, high=0.4, n=50)
    probes = [
        Probe("length", 3, right, "reach", 0.5, least=10),
        Probe("same_length", 0, None, "reach", 0.5, least=10),
        Probe("shuffled", 50, wrong, "reach", 0.5),
        Probe("labels", 50, wrong, "above", 0.5),
    ]
    folder = tmp_path / "results/reward/r1"
    folder.mkdir(parents=True)
    write_probes(folder / "probes.csv", probes)
    (folder / "signals.json").write_text(json.dumps({"fresh_accuracy": None, "policy_wins": None}))
    params = load_params(Path(__file__).resolve().parents[4] / "params.yaml")

    assert findings(tmp_path, "r1", params) == [
        "probe length: 1.000 [0.439, 1.000] of 3 pairs, expected more pairs, too few to tell",
        "probe same_length: no pairs, expected more pairs, too few to tell",
        "probe shuffled: 0.200 [0.100, 0.400] of 50 pairs, expected an interval that reaches 0.5",
        "probe labels: 0.200 [0.100, 0.400] of 50 pairs, expected an interval above 0.5",
    ]
    ends = [line.split("|")[-2].strip() for line in probe_table(probes).splitlines()[2:]]
    assert ends == ["**fails**: fewer than 10 pairs"] * 2 + ["**fails**"] * 2
