import numpy as np
import pytest

from preferences.records import Comparison, Judgment, text_hash
from preferences.statistics import (
    Votes,
    agreement_with_others,
    cohen_kappa,
    first_votes,
    fleiss_kappa,
    krippendorff_alpha,
    share,
    votes_of,
    weak_annotators,
)

# Krippendorff, "Computing Krippendorff's alpha-reliability" (2011), section C: nominal data, four
# observers, twelve units, missing values; the paper's result is 0.743.
TEXTBOOK = {
    "A": "1 2 3 3 2 1 4 1 2 . . .",
    "B": "1 2 3 3 2 2 4 1 2 5 . 3",
    "C": ". 3 3 3 2 3 4 2 2 5 1 .",
    "D": "1 2 3 3 2 4 4 1 2 5 1 .",
}


def units_from(table):
    columns = {who: said.split() for who, said in table.items()}
    length = len(next(iter(columns.values())))
    return [
        {who: said[unit] for who, said in columns.items() if said[unit] != "."}
        for unit in range(length)
    ]


def test_of_many_honest_annotators_none_is_named_weak_by_chance():
    named = 0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        units = []
        for _ in range(900):
            three = generator.choice(300, size=3, replace=False)
            right = generator.random(3) < 0.8
            units.append({f"w{n:03}": "a" if r else "b" for n, r in zip(three, right, strict=True)})
        named += bool(weak_annotators(units))
    # One data set of 40; four or more of 20 have odds of 1 to 600.
    assert named < 4


def test_of_many_annotators_who_nearly_always_agree_none_is_named_weak_by_chance():
    named = 0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        units = []
        for _ in range(250):
            two = generator.choice(50, size=2, replace=False)
            right = generator.random(2) < 0.98
            units.append({f"w{n:02}": "a" if r else "b" for n, r in zip(two, right, strict=True)})
        named += bool(weak_annotators(units))
    # As above: near 100 % the normal approximation behind Wilson's interval named 7 of 20.
    assert named < 4


def test_alpha_is_that_of_the_paper():
    assert krippendorff_alpha(units_from(TEXTBOOK)) == pytest.approx(0.743, abs=0.0005)


def test_fleiss_kappa_is_that_of_the_textbook_table():
    # Fleiss (1971) as worked in many texts: 14 raters, 10 subjects, kappa 0.210.
    counts = [
        (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
        (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
    ]  # fmt: skip
    units = [
        {f"{c}-{n}": str(c) for c, count in enumerate(row) for n in range(count)} for row in counts
    ]
    assert fleiss_kappa(units) == pytest.approx(0.210, abs=0.0005)


def with_third_votes():
    """Of 100 pairs 41 have a, a and 41 have b, b; 18 differ, and a third person was asked."""
    units = [{"x": "a", "y": "a"}] * 41 + [{"x": "b", "y": "b"}] * 41
    units += [{"x": "a", "y": "b", "z": said} for said in "ab" * 9]
    return units


def test_agreement_is_that_of_the_votes_that_every_pair_has():
    # The first two: observed 0.82, chance 0.5, kappa 0.64; alpha's chance is 1 - 100 * 99 * 2 /
    # (200 * 199). Over all votes alpha is 0.67, over pairs with the most usual number kappa is 1.
    units = first_votes(with_third_votes())
    assert fleiss_kappa(units) == pytest.approx(0.64)
    assert krippendorff_alpha(units) == pytest.approx(1 - 0.18 / (100 / 199))


def test_first_votes_are_as_many_as_every_pair_has():
    units = [{"x": "a", "y": "b", "z": "a", "u": "b"}, {"u": "a", "y": "b", "x": "a"}, {"x": "a"}]
    assert first_votes(units) == [{"x": "a", "y": "b", "z": "a"}, {"u": "a", "y": "b", "x": "a"}]
    assert first_votes([{"x": "a"}, {}]) == []


def test_cohen_kappa_by_hand():
    # 50 cases: 20 both a, 15 both b, 5 a/b, 10 b/a. Observed 0.7, chance 0.5, kappa 0.4.
    said = ["aa"] * 20 + ["bb"] * 15 + ["ab"] * 5 + ["ba"] * 10
    units = [{"x": pair[0], "y": pair[1]} for pair in said]
    assert cohen_kappa(units, "x", "y") == pytest.approx(0.4)


def test_cohen_kappa_takes_the_shares_of_each_of_the_two():
    # x says a in three of four, y in two: chance 3/4 * 1/2 + 1/4 * 1/2. Observed 3/4.
    units = [{"x": pair[0], "y": pair[1]} for pair in ("aa", "aa", "ab", "bb")]
    assert cohen_kappa(units, "x", "y") == pytest.approx((3 / 4 - 1 / 2) / (1 / 2))


def test_fleiss_kappa_is_of_the_pairs_with_the_most_usual_number_of_votes():
    # Of two votes: agreement in two of three, chance 1/2. All three and four votes say a.
    units = [{"x": pair[0], "y": pair[1]} for pair in ("aa", "ab", "bb")]
    units += [dict.fromkeys("xyz", "a"), dict.fromkeys("xyzu", "a")]
    assert fleiss_kappa(units) == pytest.approx((2 / 3 - 1 / 2) / (1 / 2))


def test_alpha_is_one_where_all_agree_and_more_than_one_choice_occurs():
    units = [{"x": "a", "y": "a"}, {"x": "b", "y": "b", "z": "b"}]
    assert krippendorff_alpha(units) == 1


def test_agreement_is_none_where_it_says_nothing():
    assert krippendorff_alpha([{"x": "a"}]) is None
    assert krippendorff_alpha([{"x": "a", "y": "a"}] * 5) is None
    assert fleiss_kappa([]) is None
    assert cohen_kappa([{"x": "a"}], "x", "y") is None


def test_wilsons_interval_is_that_of_the_tables():
    # 81 of 263 (Newcombe 1998, table I): 0.2553 to 0.3662.
    found = share(81, 263)
    assert found is not None
    assert (found.low, found.high) == (
        pytest.approx(0.2553, abs=5e-5),
        pytest.approx(0.3662, abs=5e-5),
    )
    assert share(0, 0) is None
    # 8 of 10: 0.4902 to 0.9433 (Newcombe 1998, method 3, by hand).
    found = share(8, 10)
    assert found is not None
    assert found.hits == 8
    assert (found.low, found.high) == (
        pytest.approx(0.4902, abs=1e-4),
        pytest.approx(0.9433, abs=1e-4),
    )


COMPARISON = Comparison(
    pair_id="1", round="r", prompt_id="p", prompt="p", response_a="x", response_b="y",
    policy_a="", policy_b="",
)  # fmt: skip


def vote(who, choice, **more):
    given = {"kind": "human", "revision": 1, "shown_order": "AB"} | more
    return Judgment(
        judgment_id=f"{who}{given['revision']}", pair_id="1", round="r", annotator_id=who,
        choice=choice, **given,
    )  # fmt: skip


def votes(*judgments):
    return votes_of([COMPARISON], judgments)


def test_position_bias_is_about_the_response_shown_first_and_counts_votes_that_decide():
    said = [vote("u", "a"), vote("v", "a", shown_order="BA"), vote("w", "b", shown_order="BA")]
    undecided = [vote("x", "tie"), vote("y", "skip"), vote("q", "both_bad")]
    found = votes(*said, *undecided, vote("z", "a")).first_wins()
    assert found is not None
    assert (found.mean, found.n) == (0.75, 4)
    assert Votes().first_wins() is None


def test_votes_whose_order_nobody_knows_say_nothing_of_position():
    unknown = [vote("u", "a", shown_order=None), vote("v", "a", shown_order=None)]
    assert votes(*unknown).first_wins() is None
    assert votes(*unknown, vote("w", "b")).first_wins().n == 1


def test_skips_are_no_votes_and_one_vote_is_no_unit():
    assert votes(vote("u", "a"), vote("v", "skip"), vote("w", "tie")).units == [
        {"u": "a", "w": "tie"}
    ]
    assert votes(vote("u", "a"), vote("v", "skip")).units == []


def test_the_earlier_vote_is_the_first_whatever_the_order_of_the_file():
    said = [
        vote(who, "a", created_at=f"2026-11-28T10:00:0{second}.000+00:00")
        for who, second in zip("uvw", (3, 1, 2), strict=True)
    ]
    assert list(votes(*said).units[0]) == ["v", "w", "u"]


def test_of_a_changed_mind_only_the_last_counts():
    found = votes(vote("u", "a"), vote("u", "b", revision=2), vote("w", "b"))
    assert found.units == [{"u": "b", "w": "b"}]
    assert (found.first, found.second) == (0, 2)


def test_votes_on_traded_responses_mean_the_same_response_and_keep_their_place():
    # Judged when y was answer a, and shown first.
    found = votes(vote("u", "a", answer_a=text_hash("y")), vote("w", "b"))
    assert found.units == [{"u": "b", "w": "b"}]
    assert (found.first, found.second) == (1, 1)


def test_pairs_that_people_judged_are_counted():
    assert votes(vote("u", "skip"), vote("v", "a", kind="rubric")).human_pairs == 0
    assert votes(vote("u", "tie"), vote("v", "a")).human_pairs == 1


def test_one_who_votes_against_all_others_is_weak():
    units = [{"x": "a", "y": "a", "z": "a", "bad": "b"} for _ in range(30)]
    assert weak_annotators(units) == ["bad"]
    assert agreement_with_others(units)["bad"].mean == 0
    assert agreement_with_others(units)["x"].mean == 1


def test_others_who_disagree_are_no_measure():
    assert agreement_with_others([{"x": "a", "y": "b", "z": "a"}]).keys() == {"y"}
