"""The alarms of the fresh labels, on labels and scores made by hand."""

import pytest

from preferences.records import Comparison, Preference
from rlhf.intervals import hits_interval, proportion_interval
from tasks.scoring.over_optimisation import LEAST, Signals, alarms, read_signals

SFT, OURS = "sft's hash", "the policy's hash"


def comparison(number: int, policy_a: str, policy_b: str) -> Comparison:
    return Comparison(
        pair_id=f"{number}", round="r2", prompt_id=f"p{number}", prompt="?",
        response_a="a", response_b="b", policy_a=policy_a, policy_b=policy_b,
    )  # fmt: skip


def preference(number: int, chosen: str, label: float = 1.0) -> Preference:
    return Preference(
        pair_id=f"{number}", prompt_id=f"p{number}", prompt="?",
        chosen=chosen, rejected="b" if chosen == "a" else "a", label=label, round="r2",
    )  # fmt: skip


def test_the_policys_wins_are_over_pairs_with_sft_whichever_side_it_is_on():
    comparisons = [
        comparison(0, SFT, OURS), comparison(1, OURS, SFT), comparison(2, OURS, SFT),
        comparison(3, OURS, OURS), comparison(4, SFT, OURS), comparison(5, SFT, SFT),
    ]  # fmt: skip
    labels = [
        preference(0, "b"), preference(1, "a"), preference(2, "b"), preference(3, "a"),
        preference(4, "a", label=0.5), preference(5, "a"), preference(9, "a"),
    ]  # fmt: skip
    found = read_signals([1.0, -1.0, 0.0], labels, comparisons, SFT)
    # Won, won, lost, a tie.
    assert found.policy_wins == hits_interval([1.0, 1.0, 0.0, 0.5])
    assert found.fresh_accuracy == hits_interval([1.0, 0.0, 0.5])


def test_where_the_rounds_policy_is_sft_there_is_nothing_to_over_optimise():
    found = read_signals([-1.0] * LEAST, [preference(0, "a")], [comparison(0, SFT, SFT)], SFT)
    assert found.policy_wins is None
    assert alarms(found, min_accuracy=0.6, of_sft=True) == []


def test_without_comparisons_against_sft_the_accuracy_still_warns():
    found = read_signals([-1.0] * LEAST, [], [], SFT)
    assert len(alarms(found, min_accuracy=0.6, of_sft=False)) == 1


def signals(right: int, of: int, won: int = 210, against: int = 300) -> Signals:
    return Signals(proportion_interval(float(right), of), proportion_interval(float(won), against))


@pytest.mark.parametrize(("right", "alarmed"), [(299, True), (300, False), (400, False)])
def test_a_model_that_hardly_orders_the_fresh_pairs_raises_the_alarm(right: int, alarmed: bool):
    found = alarms(signals(right, 500), min_accuracy=0.6, of_sft=False)
    assert bool(found) is alarmed
    if alarmed:
        assert found[0].startswith("the reward model orders 0.598 [0.55")


def test_a_policy_that_loses_to_sft_raises_the_alarm_and_one_that_may_not_does_not():
    (said,) = alarms(signals(400, 500, won=120), min_accuracy=0.6, of_sft=False)
    assert "over SFT in 0.400 [0.346, 0.456] of 300 pairs" in said
    # 140 of 300: Wilson's interval ends at 0.523.
    assert alarms(signals(400, 500, won=140), min_accuracy=0.6, of_sft=False) == []


def test_few_labels_raise_no_alarm():
    few = signals(0, LEAST - 1, won=0, against=LEAST - 1)
    assert alarms(few, min_accuracy=0.6, of_sft=False) == []
    assert len(alarms(signals(0, LEAST, won=0, against=LEAST), min_accuracy=0.6, of_sft=False)) == 2


def test_the_signals_are_written_with_their_intervals():
    written = Signals(proportion_interval(3.0, 4), None).as_dict()
    assert written["policy_wins"] is None
    assert (written["fresh_accuracy"]["mean"], written["fresh_accuracy"]["n"]) == (0.75, 4)
