"""What the stage makes of scores and gold scores, by hand."""

import math

import pytest

from rlhf.intervals import win_interval
from tasks.best_of_n import compare, sizes

SCORES = [[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]
GOLD = [[4.0, 8.0, 6.0], [9.0, 3.0, 5.0]]
THEIRS = [
    {"gold": 9.0, "gold_sft": 6.0, "score": 3.0},
    {"gold": 7.0, "gold_sft": 4.0, "score": 2.0},
]


def test_the_sizes_are_powers_of_two_and_the_number_of_samples() -> None:
    assert [sizes(samples) for samples in (1, 2, 5, 8, 64)] == [
        [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8], [1, 2, 4, 8, 16, 32, 64],
    ]  # fmt: skip


def test_the_curve_has_means_over_all_choices_of_n(assert_close) -> None:
    """Of two of three, the highest score is the best in two of three choices."""
    curve = compare(GOLD, SCORES, THEIRS)["curve"]
    assert [point["n"] for point in curve] == [1, 2, 3]
    golds = [point["gold"]["mean"] for point in curve]
    two = [(6 * 2 + 8) / 3, (9 * 2 + 3) / 3]
    assert_close(golds, [(6 + 17 / 3) / 2, sum(two) / 2, (6 + 9) / 2], rtol=0, atol=1e-12)
    wins = [point["win_rate_vs_sft"]["mean"] for point in curve]
    # Against 6: loss, win, tie; against 4: win, loss, win.
    two = [(0.5 * 2 + 1) / 3, (1 * 2 + 0) / 3]
    assert_close(wins, [(0.5 + 2 / 3) / 2, sum(two) / 2, (0.5 + 1) / 2], rtol=0, atol=1e-12)
    proxies = [point["proxy"]["mean"] for point in curve]
    assert_close(proxies, [1.0, 5 / 3, 2.0], rtol=0, atol=1e-12)
    bounds = [point["kl_bound"] for point in curve]
    assert_close(bounds, [0, math.log(2) - 1 / 2, math.log(3) - 2 / 3], rtol=0, atol=1e-12)


def test_the_best_of_all_and_the_policy_have_the_intervals_of_their_wins_and_ties() -> None:
    found = compare(GOLD, SCORES, THEIRS)
    # The best of three ties with 6, and wins against 4; the policy wins twice.
    assert found["curve"][-1]["win_rate_vs_sft"] == win_interval(1.0, 1.0, 2).as_dict()
    assert found["policy"]["win_rate_vs_sft"] == win_interval(2.0, 0.0, 2).as_dict()
    # One of three is drawn: a win and a tie of three, two wins of three.
    one = found["curve"][0]["win_rate_vs_sft"]
    assert one == pytest.approx(win_interval(1.0, 1 / 3, 2).as_dict())


def test_the_gain_is_of_the_policy_over_the_best_of_all_paired_by_prompt() -> None:
    found = compare(GOLD, SCORES, THEIRS)
    assert (found["ppo"]["mean"], found["best"]["mean"]) == (8.0, 7.5)
    # 9 - 6 and 7 - 9: t of one degree of freedom is 12.706, their deviation 5 / sqrt(2).
    half = 12.706204736 * (5 / math.sqrt(2)) / math.sqrt(2)
    assert found["gain"]["mean"] == 0.5
    assert found["gain"]["high"] == pytest.approx(0.5 + half)
    assert found["policy"]["win_rate_vs_sft"]["mean"] == 1.0
    assert found["policy"]["proxy"]["mean"] == 2.5


def test_where_there_is_no_gold_score_the_reward_models_own_is_compared() -> None:
    theirs = [{"gold": None, "gold_sft": None, "score": row["score"]} for row in THEIRS]
    found = compare(None, SCORES, theirs)
    assert (found["ppo"]["mean"], found["best"]["mean"], found["gain"]["mean"]) == (2.5, 2.0, 0.5)
    assert found["policy"]["gold"] is found["policy"]["win_rate_vs_sft"] is None
    assert {point["gold"] for point in found["curve"]} == {None}
    assert {point["win_rate_vs_sft"] for point in found["curve"]} == {None}


def test_where_every_response_wins_the_win_rate_is_one() -> None:
    rows = 7
    gold, scores = [[10.0] * 9] * rows, [[float(k) for k in range(9)]] * rows
    theirs = [{"gold": 9.0, "gold_sft": 1.0, "score": 0.0}] * rows
    curve = compare(gold, scores, theirs)["curve"]
    assert [point["win_rate_vs_sft"]["mean"] for point in curve] == pytest.approx([1.0] * 5)
