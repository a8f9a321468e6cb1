"""Who is flagged and who is paused, at the numbers where that begins; worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from feedback.quality.annotators import Answer, Quality, QualityParams, judge_annotators

PARAMS = QualityParams()
"""At least 20 answers; sides below P = 0.0001; fast above half; paused below 0.7, from 5
known answers on."""
ANSWER = Answer(
    annotator_id="x",
    pair_id="",
    purpose="label",
    choice="tie",
    strength=None,
    left=None,
    visible_ms=None,
    characters=240,
)


def judged(*answers: Answer, params: QualityParams = PARAMS) -> Quality:
    """The one row of somebody who gave these answers, each about a pair of its own."""
    (row,) = judge_annotators(
        [replace(one, pair_id=f"p{number}") for number, one in enumerate(answers)], params
    )
    return row


def sides(left: int, right: int) -> list[Answer]:
    return [replace(ANSWER, left=True)] * left + [replace(ANSWER, left=False)] * right


@pytest.mark.parametrize(
    ("left", "right", "flags"),
    [
        # 2 (1 + 20) / 2^20 = 0.00004; 2 (1 + 20 + 190) / 2^20 = 0.0004.
        (19, 1, ("prefers the left",)),
        (1, 19, ("prefers the right",)),
        (18, 2, ()),
        # 2 / 2^19 = 0.000004, but of 19 answers.
        (19, 0, ()),
    ],
)
def test_a_side_is_flagged_by_its_name_from_twenty_answers_on(
    left: int, right: int, flags: tuple[str, ...]
) -> None:
    assert judged(*sides(left, right)).flags == flags


@pytest.mark.parametrize(
    ("fast", "slow", "flags"), [(11, 9, ("too fast",)), (10, 10, ()), (19, 0, ())]
)
def test_who_answers_more_than_half_without_reading_is_flagged_from_twenty_answers_on(
    fast: int, slow: int, flags: tuple[str, ...]
) -> None:
    # 240 characters at 120 a second and 800 ms: 2,800 ms are just enough.
    quick, careful = (replace(ANSWER, visible_ms=ms) for ms in (2_799, 2_800))
    row = judged(*[quick] * fast, *[careful] * slow)
    assert row.flags == flags
    assert row.fast is not None
    assert (row.fast.hits, row.fast.n) == (fast, fast + slow)


def test_the_median_is_in_seconds_and_of_answers_with_a_time() -> None:
    times: list[Any] = [9_000, 1_000, None, 4_000]
    assert judged(*(replace(ANSWER, visible_ms=ms) for ms in times)).median_seconds == 4.0


@pytest.mark.parametrize(("right", "paused"), [(9, False), (8, True)])
def test_who_is_paused_is_wholly_below_the_bound(right: int, paused: bool) -> None:
    # Wilson, 95 %, of 9 and of 8 right ones of 20: up to 0.658 and up to 0.613.
    known = [
        replace(ANSWER, purpose="gold", gold="a", choice="a" if number < right else "b")
        for number in range(20)
    ]
    row = judged(*known, params=replace(PARAMS, pause_below=0.64))
    assert row.gold is not None
    assert (row.pause is not None) == paused


@pytest.mark.parametrize(("wrong", "paused"), [(4, False), (5, True)])
def test_nobody_is_paused_for_their_first_slips(wrong: int, paused: bool) -> None:
    # Wilson, 95 %, of 0 of 4 and of 0 of 5: up to 0.490 and up to 0.434.
    slip = replace(ANSWER, purpose="gold", gold="a", choice="b")

    assert (judged(*[slip] * wrong).pause is not None) == paused


def test_known_answers_alone_show_who_is_noisy() -> None:
    """x errs in 10 of 30, y in none of 60: flips of a quarter, beside somebody careful."""

    def known(name: str, number: int, choice: str) -> Answer:
        about = {"annotator_id": name, "pair_id": f"{name} {number}"}
        return replace(ANSWER, **about, purpose="gold", gold="b", choice=choice)

    said = [known("x", number, "a" if number < 10 else "b") for number in range(30)]
    said += [known("y", number, "b") for number in range(60)]
    x, y = judge_annotators(said, replace(PARAMS, pause_below=0))
    assert (x.flags, y.flags) == (("noisy",), ())
    assert x.noise > 5 > -5 > y.noise


def test_a_skip_of_a_known_answer_or_of_a_repeat_is_no_mistake() -> None:
    first, again = replace(ANSWER, choice="a"), replace(ANSWER, purpose="repeat")
    rows = [
        replace(first, pair_id="1"),
        replace(first, pair_id="2"),
        replace(again, pair_id="1", choice="a"),
        replace(again, pair_id="2", choice="skip"),
        replace(ANSWER, pair_id="g1", purpose="gold", gold="a", choice="a"),
        replace(ANSWER, pair_id="g2", purpose="gold", gold="a", choice="skip"),
    ]
    (row,) = judge_annotators(rows, PARAMS)
    assert row.repeats is not None
    assert row.gold is not None
    assert (row.repeats.hits, row.repeats.n) == (1, 1)
    assert (row.gold.hits, row.gold.n) == (1, 1)
