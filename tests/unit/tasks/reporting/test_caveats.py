"""What a reader has to know before believing the headline numbers of a run."""

from typing import Any

import pytest

from tasks.reporting.caveats import caveats
from tasks.reporting.without_gold import label_accuracy


def estimate(low: float, mean: float, high: float) -> dict[str, float]:
    return {"mean": mean, "low": low, "high": high, "n": 512}


def results(
    *,
    held_out: dict[str, float] | None = None,
    test: dict[str, float] | None = None,
    against_previous: dict[str, float] | None = None,
    wins: tuple[dict[str, float], dict[str, float]] | None = None,
) -> dict[str, Any]:
    ours, theirs = wins or (estimate(0.84, 0.87, 0.9), estimate(0.85, 0.88, 0.91))
    return {
        "policies": [
            {"name": "sft", "gold": held_out and estimate(4.7, 4.9, 5.1)},
            {
                "name": "r1",
                "gold": held_out,
                "win_rate_vs_sft": ours,
                "win_rate_vs_previous": against_previous,
            },
        ],
        "reward_models": [],
        "test": {"policy": "r1", "gold": test, "win_rate_vs_sft": theirs},
    }


def test_a_run_whose_test_prompts_agree_and_whose_rounds_gain_has_none() -> None:
    found = results(
        held_out=estimate(7.8, 8.07, 8.3),
        test=estimate(7.5, 7.8, 8.1),
        against_previous=estimate(0.51, 0.55, 0.59),
    )
    assert caveats(found) == []


@pytest.mark.parametrize(
    ("low", "mean", "high"),
    [(6.8, 7.1, 7.4), (8.4, 8.7, 9.0)],
    ids=["worse on the test prompts", "better on them"],
)
def test_test_prompts_whose_interval_is_apart_contradict_the_held_out_ones(
    low: float, mean: float, high: float
) -> None:
    found = results(held_out=estimate(7.8, 8.07, 8.3), test=estimate(low, mean, high))
    assert caveats(found) == [
        f"The test prompts contradict the held-out ones: gold {mean:.2f} [{low:.2f}, {high:.2f}] "
        "on the test prompts, 8.07 [7.80, 8.30] on the held-out ones."
    ]


def test_without_gold_the_win_rates_are_compared() -> None:
    found = results(wins=(estimate(0.84, 0.87, 0.9), estimate(0.7, 0.74, 0.78)))
    assert caveats(found) == [
        "The test prompts contradict the held-out ones: win rate against SFT 0.740 [0.700, 0.780] "
        "on the test prompts, 0.870 [0.840, 0.900] on the held-out ones."
    ]


def test_a_round_that_gained_nothing_and_one_that_lost_are_named() -> None:
    even = results(against_previous=estimate(0.48, 0.52, 0.56))
    assert caveats(even) == [
        "r1 is not distinguishable from the policy it started from: its win rate against it is "
        "0.520 [0.480, 0.560]."
    ]
    lost = results(against_previous=estimate(0.38, 0.42, 0.46))
    assert caveats(lost) == [
        "r1 is worse than the policy it started from: its win rate against it is "
        "0.420 [0.380, 0.460]."
    ]


def test_intervals_that_overlap_contradict_nothing_even_where_no_mean_lies_in_the_other() -> None:
    ours = estimate(7.8, 8.07, 8.3)
    for theirs in (estimate(7.2, 7.5, 7.8), estimate(8.3, 8.6, 8.9)):
        assert caveats(results(held_out=ours, test=theirs)) == []


def test_a_round_that_won_less_than_half_may_as_well_be_as_good() -> None:
    (sentence,) = caveats(results(against_previous=estimate(0.44, 0.48, 0.52)))
    assert sentence.startswith("r1 is not distinguishable from the policy it started from: ")


def test_a_first_round_with_gold_that_is_no_better_than_sft_is_named() -> None:
    """Of those without gold another sentence says it."""
    even = estimate(0.48, 0.52, 0.56)
    found = results(
        held_out=estimate(4.7, 4.9, 5.1), test=estimate(4.6, 4.8, 5.0),
        wins=(even, even), against_previous=even,
    )  # fmt: skip
    (sentence,) = caveats(found)
    assert sentence.startswith("r1 is not distinguishable from the policy it started from: ")


def test_a_first_round_without_gold_is_compared_with_sft_in_one_sentence() -> None:
    even = estimate(0.48, 0.52, 0.56)
    found = results(wins=(even, even), against_previous=even)
    (of_r1, of_test) = caveats(found)
    assert of_r1.startswith("r1 is not distinguishable from SFT: ")
    assert of_test.startswith("test (r1) is not distinguishable from SFT: ")


def test_what_was_not_measured_contradicts_nothing() -> None:
    begun = {"policies": [{"name": "sft", "gold": None}], "reward_models": [], "test": None}
    assert caveats(begun) == []
    tested = results(held_out=estimate(7.8, 8.07, 8.3), test=None)
    assert caveats(tested) == []


def test_the_test_is_compared_with_the_policy_that_was_tested() -> None:
    found = results(held_out=estimate(7.8, 8.07, 8.3), test=estimate(6.8, 7.1, 7.4))
    found["test"]["policy"] = "r2"
    assert caveats(found) == []


def test_responses_of_a_server_are_said_to_need_not_repeat() -> None:
    found = results(held_out=estimate(7.8, 8.07, 8.3))
    found["policies"][0]["served_logprob_difference"] = {"models/sft": 2.5e-5}
    found["policies"][1]["served_logprob_difference"] = {"models/sft": 2e-5, "p": 3.1e-4}
    (sentence,) = caveats(found)
    assert "came from a server" in sentence
    assert "by up to 0.00031 nats per token" in sentence


def test_rollouts_of_a_server_are_said_to_need_not_repeat() -> None:
    found = results(held_out=estimate(7.8, 8.07, 8.3)) | {"served_rollouts": ["r1", "r3"]}
    (sentence,) = caveats(found)
    assert sentence.startswith("A server sampled the rollouts of r1, r3 (ppo.rollouts)")


def test_the_baselines_are_those_on_the_labels_and_not_those_on_gold() -> None:
    of_labels = {"accuracy": estimate(0.6, 0.7, 0.8), "longer_wins": estimate(0.5, 0.6, 0.7)}
    found = label_accuracy(
        {"longer_wins": 0.9, "labels": of_labels}, {"baselines/bag_of_words": 0.6}
    )
    assert found == {
        "label_accuracy": of_labels["accuracy"], "label_longer_wins": of_labels["longer_wins"],
        "bag_of_words": 0.6,
    }  # fmt: skip


def test_a_reward_model_that_a_baseline_equals_is_named() -> None:
    def said(accuracy: float, longer: float | None, words: float | None) -> list[str]:
        found = results(held_out=estimate(7.8, 8.07, 8.3))
        found["reward_models"] = [
            {
                "round": "r1",
                "label_accuracy": estimate(0.55, accuracy, 0.75),
                "label_longer_wins": longer and estimate(0.5, longer, 0.8),
                "bag_of_words": words,
            }
        ]
        return caveats(found)

    (sentence,) = said(0.656, 0.672, 0.644)
    assert "The reward model of r1 does not beat longer wins 0.672: its accuracy" in sentence
    (sentence,) = said(0.656, 0.672, 0.656)
    assert "longer wins 0.672 and bag of words 0.656: its accuracy" in sentence
    assert said(0.7, 0.672, 0.644) == said(0.7, None, None) == []


def test_without_gold_what_is_worse_than_sft_or_than_guessing_is_named() -> None:
    found = results(wins=(estimate(0.27, 0.31, 0.35), estimate(0.27, 0.31, 0.35)))
    found["reward_models"] = [{"round": "r1", "label_accuracy": estimate(0.38, 0.42, 0.46)}]
    assert caveats(found) == [
        "r1 is worse than SFT: its win rate is 0.310 [0.270, 0.350].",
        "test (r1) is worse than SFT: its win rate is 0.310 [0.270, 0.350].",
        "The reward model of r1 is worse than guessing: its accuracy on the held-out labels is "
        "0.420 [0.380, 0.460].",
    ]


@pytest.mark.parametrize(("skipped", "said"), [(0, False), (56, False), (57, True), (512, True)])
def test_a_judge_without_a_verdict_on_many_prompts_is_named(skipped: int, said: bool) -> None:
    """More than a tenth: 57 of 569, as 512 prompts have a verdict."""
    found = results(
        wins=(
            estimate(0.84, 0.87, 0.9) | {"skipped": skipped},
            estimate(0.85, 0.88, 0.91) | {"skipped": 0},
        )
    )
    sentence = (
        f"The judge gave no verdict on {skipped} of {512 + skipped} prompts about r1: its win rate "
        "is of the others."
    )
    assert caveats(found) == [sentence] * said


@pytest.mark.parametrize(("differ", "said"), [(0, False), (51, False), (52, True), (512, True)])
def test_a_judge_whose_verdict_goes_by_the_order_is_named(differ: int, said: bool) -> None:
    """More than a tenth of 512; of the held-out prompts and of the test prompts."""
    apart = (estimate(0.84, 0.87, 0.9), estimate(0.85, 0.88, 0.91))
    sentence = (
        f"The judge's verdict changed with the order of the responses on {differ} of 512 prompts "
        "about {name}. Those count as ties and bring the win rate nearer to one half."
    )
    for place, name in enumerate(("r1", "test (r1)")):
        wins = [one | {"orders_differ": differ * (n == place)} for n, one in enumerate(apart)]
        found = results(wins=(wins[0], wins[1]))
        assert caveats(found) == [sentence.replace("{name}", name)] * said


def test_a_policy_without_gold_that_won_less_than_half_is_not_called_worse() -> None:
    even = estimate(0.44, 0.48, 0.52)
    (of_r1, of_test) = caveats(results(wins=(even, even)))
    assert of_r1.startswith("r1 is not distinguishable from SFT: ")
    assert of_test.startswith("test (r1) is not distinguishable from SFT: ")


def test_a_round_that_began_elsewhere_is_compared_with_what_sampled_its_comparisons() -> None:
    found = results(held_out=estimate(7.8, 8.07, 8.3), against_previous=estimate(0.44, 0.48, 0.52))
    (sentence,) = caveats(found | {"started_elsewhere": ["r1"]})
    assert sentence.startswith(
        "r1 is not distinguishable from the policy that sampled its comparisons: "
    )
    (sentence,) = caveats(found | {"started_elsewhere": ["r2"]})
    assert sentence.startswith("r1 is not distinguishable from the policy it started from: ")
