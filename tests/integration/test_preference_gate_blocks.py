"""The preference gate blocks a round for leaks, too few rows or labels, limits and bounds."""

import json

import pytest

from preferences.gate import Round
from preferences.params import Bound, Bounds, Severities, ValidateParams
from preferences.records import Sourced
from preferences.statistics import Votes
from tests.integration.gate_rows import gate_fixture, good, sourced  # noqa: F401


def test_evaluation_prompts_among_the_training_rows_block(gate):
    result = gate(good(40), evaluation=[f"question {n}?" for n in range(40)])
    assert not result.passed
    assert result.reasons[0].startswith("evaluation_leaks: ")
    assert result.heldout, "held-out rows may be about evaluation prompts"


def test_a_prompt_on_both_sides_of_earlier_data_blocks(gate):
    earlier = [sourced("p", "a", "b"), sourced("p", "c", "d", split="heldout")]
    result = gate(good(40), earlier)
    assert [reason.split(":")[0] for reason in result.reasons] == ["split_leaks"]


@pytest.mark.parametrize(
    ("fresh", "reason"),
    [
        ([], "no rows: there are no fresh preferences"),
        (good(5), "min_rows: 5 fresh preferences passed, 10 required"),
        (
            [*good(20), *good(20), *good(20)],
            "max_quarantined_fraction: 40 of 60 fresh preferences quarantined, more than 50% "
            "(duplicates 40)",
        ),
    ],
)
def test_too_few_good_rows_block(gate, fresh, reason):
    result = gate(fresh)
    assert not result.passed
    assert reason in result.reasons


def test_too_many_set_aside_are_named_by_the_rules_that_set_aside_most(gate):
    """Of a row that breaks two rules both are counted, of earlier rows and warnings none."""
    blank = [sourced(f"Question {n}?", "", f"No idea {n}.") for n in range(100, 104)]
    same = [sourced(f"Question {n}?", "Yes.", "Yes.") for n in range(200, 206)]
    turns = [
        sourced(f"Question {n}?", f"Answer {n}.\n\nHuman: And?", f"No idea {n}.")
        for n in range(300, 303)
    ]
    html = [sourced(f"Question {n}?", f"Answer<br>{n}.", "No.") for n in range(400, 405)]
    earlier = [sourced(f"Question {n}?", "", "No.") for n in range(500, 520)]
    fresh = [*good(5), *blank, blank[0], *same, *turns, *html]

    (reason,) = gate(fresh, earlier).reasons

    # 5 blank (one of them twice), 6 identical and 3 with turns; the repeated one is not named.
    assert reason.endswith(
        ": 14 of 24 fresh preferences quarantined, more than 50% "
        "(identical_responses 6, blank_responses 5, extra_turns 3)"
    )


def test_no_fresh_rows_block_even_with_earlier_ones(gate):
    first = gate(good(100))
    earlier = [Sourced(row, "") for row in (*first.train, *first.heldout)]
    assert gate([], earlier).reasons == ("no rows: there are no fresh preferences",)


def test_no_heldout_rows_block_unless_none_are_asked_for(gate):
    same = [sourced("parcel", f"a{n}", f"b{n}") for n in range(20)]  # on the train side
    assert "no held-out row is left to evaluate" in " ".join(gate(same).reasons)
    assert gate(same, params=ValidateParams(heldout_fraction=0.0)).passed


def test_a_limit_lets_some_rows_break_a_rule_and_blocks_above_it(gate):
    rows = [*good(39), *good(1)]  # 1 of 40 is a duplicate: 2.5 %
    for severity, limit, passed in (
        ("error", 0.03, True),
        ("error", 0.02, False),
        ("quarantine", 0.03, True),
        ("quarantine", 0.02, False),
        ("warn", 0.02, True),
    ):
        params = ValidateParams(
            severities=Severities(duplicates=severity), limits={"duplicates": limit}
        )
        result = gate(rows, params=params)
        assert result.passed == passed, (severity, limit)
        assert len(result.quarantined) == (severity != "warn")
    assert gate(rows, params=ValidateParams(limits={"duplicates": 0.02})).reasons == (
        "duplicates: 1 row where the same pair with the same label occurs earlier, "
        "more than 2.00% of 40",
    )


def test_a_share_of_rows_at_the_limit_is_not_more_than_it(gate):
    rows = [*good(71), *good(29)]  # 29 of 100 are duplicates; 0.29 * 100 is 28.999999999999996
    params = ValidateParams(limits={"duplicates": 0.29}, max_quarantined_fraction=0.5)
    assert gate(rows, params=params).reasons == ()


def test_a_number_beyond_its_bound_blocks_if_it_is_an_error(gate):
    rows = good(60)  # "Answer n." against "No idea n.": the shorter one always wins
    fine = Bounds(longer_wins=Bound(severity="error", limit=0.5))
    assert gate(rows, params=ValidateParams(bounds=fine)).passed
    swapped = [
        sourced(row.preference.prompt, row.preference.rejected, row.preference.chosen)
        for row in rows
    ]
    (reason,) = gate(swapped, params=ValidateParams(bounds=fine)).reasons
    # Wilson's lower end of 60 of 60 is 60 / (60 + 1.96 ** 2) = 0.940.
    assert reason == (
        "longer_wins: share of fresh pairs whose longer response was chosen is 1.000 "
        "(0.940 beyond chance), at most 0.5"
    )


def test_where_nobody_labels_the_bound_is_that_of_the_pairs_there_are(gate):
    rows = [
        sourced(row.preference.prompt, row.preference.rejected, row.preference.chosen)
        for row in good(60)
    ]
    strict = ValidateParams(
        bounds=Bounds(longer_wins=Bound(severity="error", limit=0.5)), heldout_fraction=0
    )
    assert gate([], rows, params=strict).verdict.numbers == ()
    (reason,) = gate([], rows, params=strict, context=Round(unlabelled=True)).reasons
    assert reason.startswith("longer_wins: ")


def test_data_unlike_the_rounds_before_are_reported_and_alike_ones_are_not(gate, tmp_path):
    earlier = good(200, start=1000)
    gate(good(100, start=1300), earlier)
    numbers = json.loads((tmp_path / "verdict.json").read_text())["numbers"]
    drifts = [name for name in numbers if name.endswith("drift")]
    assert drifts == ["length_drift", "score_drift", "prompt_drift", "language_drift"]
    assert all(numbers[name]["kept"] for name in drifts)
    other = [
        sourced(f"Please repair lamp {n}!", "It is done, and the lamp is with you. " * 9, f"No {n}")
        for n in range(100)
    ]
    gate(other, earlier)
    numbers = json.loads((tmp_path / "verdict.json").read_text())["numbers"]
    assert {name for name in drifts if not numbers[name]["kept"]} == {
        "length_drift",
        "prompt_drift",
        "language_drift",
    }


def test_too_few_human_labels_block_where_the_round_asks_for_them(gate):
    votes = Votes()
    votes.human_pairs = 12
    result = gate(good(40), context=Round(votes=votes, human_labels=13))
    assert result.reasons == ("human_labels: people judged 12 fresh pairs, the round requires 13",)
    assert gate(good(40), context=Round(votes=votes, human_labels=12)).passed
