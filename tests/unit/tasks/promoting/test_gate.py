"""What the gate before production refuses, and where exactly its limits lie."""

import math
from dataclasses import replace

import pytest

from rlhf.intervals import Interval, proportion_interval
from tasks.promoting.gate import Compared, Limits, Verdict, check_of_test_prompts, checks

QUIET: list[str] = []


def wins(won: float, n: int) -> Interval:
    """Wilson's interval (1927), computed here from its own quadratic: the roots of
    (p - x)² n = z² x (1 - x)."""
    p, z2 = won / n, 1.959963984540054**2
    a, b, c = n + z2, -(2 * n * p + z2), n * p * p
    root = math.sqrt(b * b - 4 * a * c)
    return Interval(mean=p, low=(-b - root) / (2 * a), high=(-b + root) / (2 * a), n=n)


def compared(**changes: object) -> Compared:
    kl = Interval(mean=4.0, low=3.9, high=4.1, n=512)
    plain = Compared(
        split="heldout", judge="gold", wins=wins(300, 512), skipped=0, kl=kl,
        length=20.0, length_before=20.0, diversity=0.2, diversity_before=0.2,
    )  # fmt: skip
    return replace(plain, **changes)


def failed(heldout: Compared, **limits: float) -> list[str]:
    found = checks(heldout, QUIET, None, Limits(**limits))
    return [check.name for check in found if not check.passed]


def test_a_candidate_that_keeps_to_every_limit_passes() -> None:
    assert failed(compared()) == []


def test_the_interval_here_is_the_one_that_is_measured() -> None:
    ours, theirs = wins(279, 512), proportion_interval(279.0, 512)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize(
    ("won", "refused"),
    # Of 512, 278 wins have the interval [0.4996, 0.5856]; 279 have [0.5016, 0.5875].
    [(278, ["win rate"]), (279, []), (256, ["win rate"]), (512, []), (0, ["win rate"])],
)
def test_the_whole_interval_of_the_win_rate_has_to_lie_above_the_bar(
    won: int, refused: list[str]
) -> None:
    assert (wins(278, 512).low < 0.5 < wins(279, 512).low) is True
    assert failed(compared(wins=wins(won, 512))) == refused


def test_a_higher_bar_refuses_a_candidate_that_is_merely_better() -> None:
    assert failed(compared(), win_rate=0.6) == ["win rate"]


@pytest.mark.parametrize(("kl", "refused"), [(10.0, []), (10.01, ["KL to SFT"])])
def test_the_mean_kl_has_a_limit(kl: float, refused: list[str]) -> None:
    assert failed(compared(kl=Interval(mean=kl, low=kl - 3, high=kl + 3, n=9))) == refused


@pytest.mark.parametrize(
    ("length", "refused"),
    [(13.3, ["length"]), (13.5, []), (30.0, []), (30.1, ["length"])],
)
def test_responses_may_be_two_thirds_to_one_and_a_half_times_as_long(
    length: float, refused: list[str]
) -> None:
    assert failed(compared(length=length)) == refused


@pytest.mark.parametrize(("share", "refused"), [(0.1, []), (0.099, ["diversity"]), (1.0, [])])
def test_the_share_of_different_word_pairs_may_halve(share: float, refused: list[str]) -> None:
    assert failed(compared(diversity=share)) == refused


def test_a_policy_without_any_word_pairs_is_measured_too() -> None:
    none = compared(diversity=0.0, diversity_before=0.0)
    assert failed(none) == []
    assert "0.000, 1.00 times the 0.000 before" in [
        check.found for check in checks(none, QUIET, None, Limits())
    ]
    assert failed(compared(diversity=0.1, diversity_before=0.0)) == []
    assert failed(compared(diversity=0.0)) == ["diversity"]


def test_a_guard_that_spoke_and_withdrawn_data_refuse_and_say_why() -> None:
    found = checks(compared(), ["probe length: 0.4"], "withdrawn on 3 May", Limits())
    assert [check.words for check in found if not check.passed] == [
        "guards of the reward model: probe length: 0.4, expected no probe that fails, no warning",
        "withdrawn data: withdrawn on 3 May, expected none",
    ]


@pytest.mark.parametrize(("probed", "said"), [(True, "quiet"), (False, "too few held-out pairs")])
def test_probes_that_could_not_decide_are_not_called_quiet(probed: bool, said: str) -> None:
    found = checks(compared(), QUIET, None, Limits(), probed=probed)
    (check,) = [one for one in found if one.name == "guards of the reward model"]
    assert check.passed
    assert said in check.found


def test_a_round_without_a_reward_model_has_no_guard_to_ask() -> None:
    (check,) = [c for c in checks(compared(), None, None, Limits()) if "guards" in c.name]
    assert (check.passed, check.found) == (True, "no reward model to ask about")


@pytest.mark.parametrize(
    ("won", "passed"),
    # Held out: 0.586, from 0.543 up. On the test prompts 0.498 is no win; the interval of 0.502
    # reaches 0.545, that of 0.500 reaches 0.543.
    [(255, False), (256, False), (257, True), (300, True), (341, True), (345, False)],
)
def test_the_test_prompts_contradict_where_it_does_not_win_or_the_intervals_are_apart(
    won: int, passed: bool
) -> None:
    heldout, test = compared(), compared(split="test", wins=wins(won, 512))
    assert check_of_test_prompts(heldout, test, Limits()).passed is passed


def test_test_prompts_far_below_the_held_out_ones_contradict_although_it_wins_there() -> None:
    heldout = compared(wins=wins(450, 512))
    test = compared(split="test", wins=wins(320, 512))
    assert test.wins.low > 0.5
    assert check_of_test_prompts(heldout, test, Limits()).passed is False


def test_test_prompts_that_were_not_asked_are_neither_passed_nor_failed() -> None:
    check = check_of_test_prompts(compared(), None, Limits())
    assert check.passed is None
    verdict = Verdict(
        round_key="r1", digest="0a.dir", before="SFT", before_version=None, limits=Limits(),
        checks=(check,), heldout=compared(), test=None,
    )  # fmt: skip
    assert verdict.failed == ()
    assert "| test prompts | not asked" in verdict.table()
    assert verdict.table().splitlines()[-1].endswith("| - |")


def test_what_the_judge_left_out_is_said() -> None:
    words = checks(compared(skipped=3), QUIET, None, Limits())[0].found
    assert words == "0.586 [0.543, 0.628] of 512 prompts by gold, 3 not judged"
