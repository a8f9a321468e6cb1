"""The table that people see at the end of `make repro`."""

from typing import Any

import pytest

from tasks.reporting.result_table import duration, memory_line, result_table, time_lines


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "n": 512}


def policy(name: str, gold: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "gold": None if gold is None else interval(gold),
        "win_rate_vs_sft": interval(0.75),
        "kl": interval(3.25),
    }


SUMMARY = {
    "policies": [policy("sft", 4.5), policy("r1", 6.25)],
    "reward_models": [
        {"round": "r1", "accuracy_before": interval(0.55), "accuracy_after": interval(0.71)}
    ],
    "test": {**policy("r1", 6.28), "policy": "r1"},
}


def test_each_round_shows_gold_win_rate_kl_and_accuracy_before_and_after() -> None:
    lines = result_table(SUMMARY).splitlines()
    (row,) = [line for line in lines if line.startswith("r1")]
    assert row.split() == [
        "r1", "6.25", "0.750", "[0.700,", "0.800]", "3.25", "0.550", "->", "0.710",
    ]  # fmt: skip
    (test,) = [line for line in lines if line.startswith("test (r1)")]
    assert test.split()[2] == "6.28"


def test_what_contradicts_the_headline_stands_above_the_table() -> None:
    tested = {**policy("r1", 5.75), "policy": "r1"}
    lines = result_table({**SUMMARY, "test": tested}).splitlines()
    assert " ".join(" ".join(lines[:2]).split()) == (
        "Note: The test prompts contradict the held-out ones: gold 5.75 [5.70, 5.80] on the "
        "test prompts, 6.25 [6.20, 6.30] on the held-out ones."
    )
    assert max(map(len, lines)) <= 80
    assert "Note" not in result_table({**SUMMARY, "test": {**policy("r1", 6.28), "policy": "r1"}})


def test_it_is_readable_at_80_columns() -> None:
    assert max(len(line) for line in result_table(SUMMARY).splitlines()) <= 80


@pytest.mark.parametrize("key", ["r1", "round1", "fresh_labels_of_may"])
def test_the_columns_stand_below_their_heads_whatever_a_round_is_called(key: str) -> None:
    models = [{"round": key, "accuracy_before": interval(0.55), "accuracy_after": interval(0.71)}]
    policies, test = [policy("sft", 4.5), policy(key, 6.25)], {**policy(key, 6.28), "policy": key}
    lines = result_table({"policies": policies, "reward_models": models, "test": test}).splitlines()
    words = ("gold", "score", "4.50", "6.25", "6.28")
    found = [(line, word) for line in lines for word in words if word in line]
    assert [word for _, word in found] == list(words)
    ends = {line.index(word) + len(word) for line, word in found}
    assert len(ends) == 1
    assert key != "round1" or max(map(len, lines)) <= 80


def test_the_first_round_has_no_accuracy_before() -> None:
    first = {"round": "r1", "accuracy_before": None, "accuracy_after": interval(0.71)}
    summary = {"policies": [policy("r1", 6.25)], "reward_models": [first], "test": None}
    assert result_table(summary).splitlines()[-1].endswith("first: 0.710")


def without_gold(wins: float) -> dict[str, Any]:
    own = {
        **policy("r1", None),
        "win_rate_vs_sft": interval(wins),
        "win_rate_judge": "reward_model",
        "proxy": interval(0.84),
        "proxy_sft": interval(0.02),
    }
    rewards = {
        "round": "r1", "label_accuracy": interval(0.71), "label_longer_wins": interval(0.55),
        "bag_of_words": 0.642,
    }  # fmt: skip
    sft = {**policy("sft", None), "win_rate_vs_sft": None, "proxy": {"mean": None}}
    return {"policies": [sft, own], "reward_models": [rewards], "test": None}


def test_without_gold_proxies_and_labels_stand_in_its_place() -> None:
    lines = result_table(without_gold(0.75)).splitlines()
    (row,) = [line for line in lines if line.startswith("r1")]
    assert row.split() == [
        "r1", "0.02", "->", "0.84", "0.750", "[0.700,", "0.800]", "3.25",
        "0.710", "[0.660,", "0.760]",
    ]  # fmt: skip
    (sft,) = [line for line in lines if line.startswith("sft")]
    assert sft.split() == ["sft", "-", "-", "3.25", "-"]
    assert lines[-3] == (
        "Baselines on the held-out labels of r1: longer wins 0.550, bag of words 0.642."
    )
    assert " ".join(lines[-2:]) == (
        "Win rates are judged by the reward model that the policy was trained on, whose score it "
        "was made to raise: this data has no gold score."
    )
    assert max(map(len, lines)) <= 80
    assert not any("distinguishable" in line for line in lines)
    assert "judged" not in result_table(SUMMARY)


def test_columns_are_as_wide_as_what_stands_in_them() -> None:
    """A function of the user's own may give scores of hundreds."""
    summary = without_gold(0.75)
    summary["policies"][1] |= {"proxy": interval(-1138.14), "proxy_sft": interval(-1094.96)}
    lines = result_table(summary).splitlines()
    (row,) = [line for line in lines if line.startswith("r1")]
    (header,) = [line for line in lines if "SFT -> policy" in line]
    for cell, head in [("-1094.96 -> -1138.14", "SFT -> policy"), ("0.800]", "interval)")]:
        assert row.index(cell) + len(cell) == header.index(head) + len(head)


def test_a_proxy_that_is_zero_but_for_rounding_has_no_sign() -> None:
    summary = without_gold(0.75)
    summary["policies"][1]["proxy_sft"] = interval(-0.002)
    assert "0.00 -> 0.84" in result_table(summary)
    assert "-0.00" not in result_table(summary)


def test_a_win_rate_whose_interval_holds_one_half_distinguishes_nothing() -> None:
    text = " ".join(result_table(without_gold(0.52)).split())
    assert text.startswith(
        "Note: r1 is not distinguishable from SFT: its win rate is 0.520 [0.470, 0.570]."
    )


def test_the_time_goes_to_the_longest_stages_first_and_the_rest_is_summed() -> None:
    stages = {f"s{number}": 2.0 for number in range(20)} | {"ppo@r1": 92.4, "sft": 61.0}
    text = time_lines({"total": 193.0, "stages": stages}, longest=2)
    assert text == "Time: 3:13 min (ppo@r1 1:32 min, sft 1:01 min, 20 others 40.0 s)\n"


def test_the_time_of_what_earlier_runs_had_done_is_named_and_added() -> None:
    seconds = {"total": 193.0, "stages": {"ppo@r1": 190.0}}
    assert "earlier" not in time_lines(seconds)
    text = time_lines(seconds | {"earlier": {"base": 92.0, "sft": 61.0}})
    assert " ".join(text.split()) == (
        "Time: 3:13 min (ppo@r1 3:10 min) not counting 2 stages that earlier runs had done in "
        "2:33 min: with them 5:46 min"
    )
    assert max(len(line) for line in text.splitlines()) <= 80


def test_no_time_of_earlier_runs_is_parted_from_its_unit() -> None:
    """Eight stages in 16.8 s and 14 s of this run end at the 80th column."""
    earlier = {f"s{number}": 2.1 for number in range(8)}
    text = time_lines({"total": 14.0, "stages": {}, "earlier": earlier})
    assert text.endswith("\n      30.8 s\n")


def test_a_time_line_never_exceeds_80_columns() -> None:
    stages = {f"evaluate@round_with_a_name_{number}": 75.0 for number in range(9)}
    text = time_lines({"total": 600.0, "stages": stages})
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_time_stays_on_the_line_of_its_stage_and_its_unit() -> None:
    stages = {"test": 24.8, "ppo@r2": 23.6, "evaluate@r2": 22.4, "validate@r1": 22.2}
    text = time_lines({"total": 345.0, "stages": stages})
    for name, took in stages.items():
        assert f"{name} {took} s" in text


def test_the_loss_of_sft_on_held_out_demonstrations_is_shown_where_some_were_held_out() -> None:
    heldout = {"demonstrations": 40, "base": 1.1614, "sft": 0.7792}
    lines = result_table(SUMMARY | {"sft": {"heldout": heldout}}).splitlines()
    assert lines[-1] == "SFT on 40 held-out demonstrations: 1.161 -> 0.779 nats a token."
    assert "held-out demonstrations" not in result_table(SUMMARY)


def test_a_reward_model_whose_interval_holds_one_half_may_as_well_guess() -> None:
    summary = without_gold(0.75)
    summary["reward_models"][0]["label_accuracy"] = interval(0.54)
    text = " ".join(result_table(summary).split())
    assert text.startswith(
        "Note: The reward model of r1 is not distinguishable from guessing: its accuracy on the "
        "held-out labels is 0.540 [0.490, 0.590]."
    )


def test_the_memory_is_that_of_the_largest_stage() -> None:
    peaks = {"base": 900_000_000, "ppo@r1": 5_390_000_000, "reward@r1": 3_490_000_000}
    assert memory_line(peaks) == "Memory: 5.4 GB at the most (ppo@r1)\n"
    assert memory_line({}) == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (7.44, "7.4 s"),
        (59.4, "59.4 s"),
        (59.6, "1:00 min"),
        (92.6, "1:33 min"),
        (3725, "62:05 min"),
    ],
)
def test_seconds_are_rounded_to_the_nearest(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_share_without_bounds_is_shown_without_an_interval() -> None:
    share = {**policy("r1", 6.25), "win_rate_vs_sft": {"mean": 0.75}}
    (row,) = [
        x for x in result_table({**SUMMARY, "policies": [share]}).splitlines() if x[:2] == "r1"
    ]
    assert row.split()[:4] == ["r1", "6.25", "0.750", "3.25"]
