import pytest

from preferences.judging import judge
from preferences.records import (
    Comparison,
    Judgment,
    JudgmentMismatchError,
    pair_id,
    text_hash,
)

PROMPT = "Where is my parcel?"


def comparison(a="Here.", b="No idea.", prompt=PROMPT, **more):
    return Comparison(
        pair_id=pair_id(prompt, a, b), round="r1", prompt_id="p1", prompt=prompt,
        response_a=a, response_b=b, policy_a="x", policy_b="y", **more,
    )  # fmt: skip


def vote(choice, who="ann", pair=None, **more):
    content = {"kind": "human", "revision": 1} | more
    return Judgment(
        judgment_id=f"{who}-{choice}", pair_id=(pair or comparison()).pair_id, round="r1",
        annotator_id=who, choice=choice, **content,
    )  # fmt: skip


def judged(*votes, weights=None):
    return judge([comparison()], votes, weights=weights or {})


def test_the_response_that_was_chosen_becomes_chosen():
    (row,) = judged(vote("b")).rows
    assert (row.preference.chosen, row.preference.rejected) == ("No idea.", "Here.")
    (row,) = judged(vote("a")).rows
    assert (row.preference.chosen, row.preference.rejected) == ("Here.", "No idea.")
    assert row.preference.source == "human"
    assert row.preference.round == "r1"


def test_the_version_of_those_who_decided_travels_with_the_pair():
    votes = [
        vote("a", who="ana", annotator_version="guide-2"),
        vote("a", who="model", kind="llm", annotator_version="9f2c"),
        vote("b", who="ben", annotator_version="guide-1"),
    ]
    (row,) = judged(*votes).rows
    assert row.preference.source == "human+llm"
    assert row.preference.annotator_version == "9f2c+guide-2"
    assert row.preference.to_row()["annotator_version"] == "9f2c+guide-2"
    assert "annotator_version" not in judged(vote("a")).rows[0].preference.to_row()


def test_every_comparison_is_accounted_for():
    pairs = [comparison(b=f"answer {number}") for number in range(5)]
    votes = [
        vote("a", pair=pairs[0]),
        vote("tie", pair=pairs[1]),
        vote("both_bad", pair=pairs[2]),
        vote("skip", pair=pairs[3]),
    ]
    result = judge(pairs, votes, weights={})
    assert (len(result.rows), result.ties, result.skipped, result.unjudged) == (1, 2, 1, 1)


@pytest.mark.parametrize(
    ("choices", "chosen"),
    [
        ("a a b", "Here."),
        ("b a b", "No idea."),
        ("a b", None),
        ("a a b tie", None),
        ("a a a b tie", "Here."),
        ("a skip skip", "Here."),
        ("tie both_bad", None),
    ],
)
def test_more_than_half_of_those_who_did_not_skip_decide(choices, chosen):
    votes = [vote(choice, who=f"ann{n}") for n, choice in enumerate(choices.split())]
    result = judged(*votes)
    assert [row.preference.chosen for row in result.rows] == ([chosen] if chosen else [])
    assert result.ties == (chosen is None)


def test_weights_per_kind_count_in_the_vote_and_in_the_row():
    votes = [vote("a", who="x", kind="human"), vote("b", who="y", kind="llm")]
    (row,) = judged(*votes, weights={"llm": 0.25}).rows
    assert (row.preference.chosen, row.preference.weight) == ("Here.", 1.0)
    (row,) = judged(*votes, weights={"human": 0.1, "llm": 0.25}).rows
    assert (row.preference.chosen, row.preference.weight) == ("No idea.", 0.25)
    assert judged(vote("a", kind="llm"), weights={"llm": 0}).skipped == 1


@pytest.mark.parametrize("choice", ["a", "tie"])
def test_a_vote_of_weight_0_changes_nothing_whether_it_agrees_or_not(choice):
    """Else pairs count half where who is not heard agrees, and in full where they differ."""
    weights = {"human": 1.0, "llm": 0.0}
    mine = vote(choice, who="x", strength=2, annotator_version="guide-1")
    (alone,) = with_ties(mine, weights=weights).rows
    for said in ("a", "b", "tie"):
        other = vote(said, who="y", kind="llm", strength=4, annotator_version="model-1")
        assert with_ties(mine, other, weights=weights).rows == (alone,)


def test_the_margin_is_the_mean_strength_of_the_winning_votes_in_thirds():
    votes = [
        vote("a", who="x", strength=4),
        vote("a", who="y", strength=3),
        vote("a", who="z"),
        vote("b", who="w", strength=1),
    ]
    (row,) = judged(*votes).rows
    assert row.preference.margin == pytest.approx((1 + 2 / 3) / 2)
    assert judged(vote("a")).rows[0].preference.margin == 0.0


def test_a_newer_revision_replaces_the_older_whatever_the_order():
    old, new = vote("a"), vote("b", revision=2)
    for votes in ((old, new), (new, old)):
        assert judged(*votes).rows[0].preference.chosen == "No idea."


def test_the_same_judgment_twice_counts_once():
    result = judged(vote("a"), vote("a"), vote("b", who="other"))
    assert result.ties == 1


def test_one_revision_that_says_two_things_is_refused():
    with pytest.raises(JudgmentMismatchError, match='both are revision 1 of annotator "ann"'):
        judged(vote("a"), vote("b"))


def test_a_judgment_of_swapped_responses_is_turned_round():
    swapped = vote("a", answer_a=text_hash("No idea."))
    assert judged(swapped).rows[0].preference.chosen == "No idea."
    straight = vote("a", answer_a=text_hash("Here."))
    assert judged(straight).rows[0].preference.chosen == "Here."
    with pytest.raises(JudgmentMismatchError, match="answer_a is neither response"):
        judged(vote("a", answer_a=text_hash("Else.")))


def test_a_judgment_of_a_pair_that_the_round_does_not_have_is_refused():
    with pytest.raises(JudgmentMismatchError, match=r"is not among the 1 comparisons"):
        judged(vote("a", pair=comparison(b="other")))


def test_a_pair_that_occurs_twice_also_swapped_is_refused():
    with pytest.raises(JudgmentMismatchError, match=r"comparison 2: .* occurs twice"):
        judge([comparison("x", "y"), comparison("y", "x")], [], weights={})


def test_a_pair_id_that_is_not_that_of_the_content_is_refused():
    row = comparison().to_row() | {"response_a": "changed"}
    with pytest.raises(JudgmentMismatchError, match="comparison 1: pair_id is"):
        judge([Comparison.from_row(row)], [], weights={})


def with_ties(*votes, weights=None):
    return judge([comparison()], votes, weights=weights or {}, keep_ties=True)


@pytest.mark.parametrize("choices", ["tie", "both_bad", "a b", "tie both_bad", "a a b tie"])
def test_s43_a_tie_that_is_kept_is_half_and_half_and_asks_for_no_gap(choices):
    votes = [vote(choice, who=f"ann{i}", strength=4) for i, choice in enumerate(choices.split())]
    result = with_ties(*votes)
    (row,) = result.rows
    assert (row.preference.label, row.preference.margin, row.preference.is_tie) == (0.5, 0.0, True)
    assert {row.preference.chosen, row.preference.rejected} == {"Here.", "No idea."}
    assert (result.ties, result.skipped, result.unjudged) == (0, 0, 0)


def test_s43_a_kept_tie_weighs_what_its_votes_weigh():
    weights = {"human": 1.0, "llm": 0.2}
    votes = [vote("tie"), vote("tie", who="model", kind="llm"), vote("skip", who="x", kind="llm")]
    (row,) = with_ties(*votes, weights=weights).rows
    assert row.preference.weight == pytest.approx(0.6)
    assert row.preference.source == "human+llm"


def test_s43_keeping_ties_changes_no_decided_pair_and_no_skipped_one():
    assert with_ties(vote("b")) == judged(vote("b"))
    assert with_ties(vote("skip")) == judged(vote("skip"))
    assert with_ties() == judged()


@pytest.mark.parametrize("choice", ["a", "b", "tie"])
def test_the_flag_of_a_cut_response_follows_it_to_its_side(choice):
    pair = comparison(finished_a=True, finished_b=False)
    (row,) = judge([pair], [vote(choice)], weights={}, keep_ties=True).rows
    flags = {
        row.preference.chosen: row.preference.chosen_finished,
        row.preference.rejected: row.preference.rejected_finished,
    }
    assert flags == {"Here.": True, "No idea.": False}
