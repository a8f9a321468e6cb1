import json
from dataclasses import replace

import pytest

from preferences.formats.files import read_records, write_records
from preferences.formats.reading import open_source
from preferences.formats.votes import voted_of
from preferences.formats.writing import Unsettled, as_votes, check_name, write_items
from preferences.judging import judge
from preferences.reader import MalformedDataError
from preferences.records import text_hash
from tests.pair_files import CONTAINERS, PREFERENCES, VOTES, preference, read, write


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_same_rows_are_the_same_bytes(tmp_path, container):
    rows = [each for each in PREFERENCES if isinstance(each.prompt, str)]
    for folder in ("one", "two"):
        write(tmp_path / folder / container, rows, "preferences")
    one, two = ((tmp_path / folder / container).read_bytes() for folder in ("one", "two"))
    assert one == two
    if container.endswith(".gz"):
        assert one[4:8] == bytes(4), "the time of packing is not in the file"


def test_a_pair_without_a_margin_is_written_as_ranks_and_stays_a_preference(tmp_path):
    rows = [preference("p", "good", "bad", source="", margin=margin) for margin in (0.0, 2.5)]
    for name in ("x.jsonl", "x.json", "x.csv", "x.parquet"):
        write(tmp_path / name, rows, "scored")
        assert read(tmp_path / name) == rows
    row = json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])
    assert row["ranks"] == [1, 2]
    assert "scores" not in row


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("to", ["preferences", "trl"])
def test_rows_of_which_only_some_have_a_label_or_a_version_come_back(tmp_path, container, to):
    path = tmp_path / container
    rows = [preference("p", "x", "y"), preference("q", "x", "y", label=0.75),
            preference("r", "x", "y", annotator_version="v7")]  # fmt: skip
    write(path, rows, to)
    assert None not in [value for line in read_records(path) for value in line.row.values()]
    assert read(path) == rows


def test_rows_that_do_not_fit_into_parquet_are_refused_and_nothing_is_left(tmp_path):
    path = tmp_path / "x.parquet"
    with pytest.raises(MalformedDataError) as caught:
        write(path, PREFERENCES, "trl")
    assert str(caught.value).startswith(f"{path}: does not fit into Parquet, whose columns have ")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_scores_that_are_infinitely_far_apart_are_refused(tmp_path):
    row = {"prompt": "p", "responses": ["a", "b"], "scores": [1.7e308, -1.7e308]}
    write_records(tmp_path / "x.jsonl", [row])
    with pytest.raises(MalformedDataError, match=r"x\.jsonl:1: .*not finite"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("container", ["x.jsonl", "x.json", "x.csv"])
def test_an_infinite_number_is_never_written(tmp_path, container):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_records(tmp_path / container, [{"margin": float("inf")}])
    assert list(tmp_path.iterdir()) == []


def test_opposite_pairs_become_one_comparison_that_two_annotators_disagree_on(tmp_path):
    rows = [preference("p", "x", "y"), preference("p", "y", "x"), preference("p", "y", "x")]
    write(tmp_path / "out", rows, "judgments")
    (item,) = open_source(tmp_path / "out")
    assert [each.annotator_id for each in item.judgments] == ["human", "human 2", "human 3"]
    assert len({each.judgment_id for each in item.judgments}) == 3
    (settled,) = Unsettled().settle([item])
    assert (settled.preference.chosen, settled.preference.source) == ("y", "human")


@pytest.mark.parametrize("to", ["votes", "label_studio"])
def test_only_the_last_revision_of_a_judgment_is_written_and_for_the_response_it_means(
    tmp_path, to
):
    voted = voted_of(preference("p", "good", "bad"), "")
    (first,) = voted.judgments
    other = "b" if first.choice == "a" else "a"
    # The answers have traded places since the second was said.
    second = replace(
        first, judgment_id="2", revision=2, choice=first.choice,
        answer_a=text_hash(voted.comparison.response_b),
    )  # fmt: skip
    item = replace(voted, judgments=(first, second))
    write_items(tmp_path / "x.jsonl", [item], to)
    (back,) = open_source(tmp_path / "x.jsonl")
    assert [each.choice for each in back.judgments] == [other]


def test_what_is_known_of_an_annotator_comes_back_from_judgments(tmp_path):
    rows = [
        preference("p", "x", "y", margin=margin, annotator_version="v1")
        for margin in (0.0, 1 / 3, 2 / 3, 1.0)
    ]
    for number, row in enumerate(rows):
        write(tmp_path / str(number), [row], "judgments")
        (back,) = Unsettled().settle(open_source(tmp_path / str(number)))
        assert back.preference == row


@pytest.mark.parametrize("to", ["votes", "label_studio", "judgments"])
def test_a_blank_source_or_round_is_that_of_an_import(tmp_path, to):
    out = tmp_path / ("out" if to == "judgments" else "out.jsonl")
    write(out, [preference("p", "x", "y", source=" ", round=" ")], to)
    (item,) = open_source(out)
    assert (item.judgments[0].annotator_id, item.comparison.round) == ("import", "import")


def test_a_turn_that_both_responses_begin_with_is_refused_since_hh_takes_it_for_the_prompt(
    tmp_path,
):
    turn = "Hi.\n\nHuman: And?\n\nAssistant:"
    with pytest.raises(MalformedDataError, match="turn that both responses start with"):
        write(tmp_path / "x.jsonl", [preference("p", turn + " yes", turn + " no")], "hh")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["votes", "label_studio", "judgments"])
def test_a_preference_survives_as_one_vote_and_its_sides_are_mixed(tmp_path, to):
    rows = [preference(f"p{n}", "good", "bad", margin=0.0) for n in range(40)]
    out = tmp_path / ("out" if to == "judgments" else "out.json")
    write(out, rows, to)
    items = list(open_source(out))
    back = [judge([item.comparison], item.judgments, weights={}).rows[0] for item in items]
    assert [row.preference.chosen for row in back] == ["good"] * 40
    assert 8 <= sum(item.comparison.response_a == "good" for item in items) <= 32


def test_votes_without_a_winner_are_counted_when_pairs_are_written(tmp_path):
    rows = [VOTES, VOTES | {"response_b": "z", "votes": ["skip"] * 7}]
    write_records(tmp_path / "in.jsonl", rows)
    for to in ("hh", "unpaired"):
        unsettled = write_items(tmp_path / "out.jsonl", open_source(tmp_path / "in.jsonl"), to)
        assert (unsettled.ties, unsettled.skipped) == (1, 1)
        assert (tmp_path / "out.jsonl").read_text() == ""


TIE = preference("p", "x", "y", label=0.5, margin=0.0)


@pytest.mark.parametrize(
    "to", ["preferences", "trl", "trl_messages", "trl_implicit", "scored", "votes",
           "label_studio", "judgments"]
)  # fmt: skip
def test_a_tie_stays_a_tie_where_the_format_can_say_so(tmp_path, to):
    soft = preference("q", "x", "y", label=0.75)
    out = tmp_path / ("out" if to == "judgments" else "out.jsonl")
    assert write(out, [TIE, soft], to).ties == 0
    tie, other = Unsettled().settle(open_source(out), keep_ties=True)
    assert tie.preference.is_tie
    assert (tie.preference.chosen, tie.preference.rejected) == ("x", "y")
    assert (other.preference.chosen, other.preference.is_tie) == ("x", False)
    if to.startswith(("preferences", "trl")):
        assert other.preference.label == 0.75


@pytest.mark.parametrize("to", ["preferences", "trl", "scored"])
def test_votes_without_a_majority_are_written_as_a_tie(tmp_path, to):
    write_records(tmp_path / "in.jsonl", [VOTES])
    assert write_items(tmp_path / "out.jsonl", open_source(tmp_path / "in.jsonl"), to).ties == 0
    (tie,) = Unsettled().settle(open_source(tmp_path / "out.jsonl"), keep_ties=True)
    assert tie.preference.is_tie


@pytest.mark.parametrize("to", ["hh", "unpaired"])
def test_a_tie_is_left_out_and_counted_where_the_format_knows_winners_only(tmp_path, to):
    unsettled = write(tmp_path / "x.jsonl", [TIE, preference("q", "yes", "no")], to)
    assert unsettled.ties == 1
    (row,) = read(tmp_path / "x.jsonl")
    assert row.chosen.strip() == "yes"


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    rows = [preference([{"role": "tool", "content": "x"}], "a", "b")]
    with pytest.raises(MalformedDataError, match="HH has no turns of role tool"):
        write(tmp_path / "x.jsonl", rows, "hh")
    assert list(tmp_path.iterdir()) == []


def test_a_vote_of_a_preference_keeps_who_said_it():
    voted = voted_of(PREFERENCES[0], "x:1")
    assert voted.judgments[0].annotator_id == "human"
    assert as_votes(voted) is voted


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.tab.gz"])
def test_tasks_of_label_studio_do_not_fit_into_a_table(tmp_path, name):
    with pytest.raises(MalformedDataError, match="do not fit into CSV"):
        check_name(tmp_path / name, "label_studio")
