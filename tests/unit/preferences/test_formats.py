import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from preferences.formats.files import read_records, write_records
from preferences.formats.reading import Source, detect, open_source
from preferences.formats.votes import voted_of
from preferences.formats.writing import Unsettled, as_votes, write_items
from preferences.judging import judge
from preferences.reader import MalformedDataError
from preferences.records import Preference, Sourced, Voted, pair_id, prompt_text, text_hash

CONTAINERS = [
    "x.jsonl", "x.jsonl.gz", "x.json", "x.json.gz", "x.csv", "x.csv.gz", "x.parquet",
    "x.parquet.gz",
]  # fmt: skip
TRICKY = [
    "12",
    "true",
    "null",
    "[1]",
    '{"a": 1}',
    '"quoted"',
    "-",
    "- a list",
    "1. one",
    'a,b\n"c"',
]
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hé, où?"},
]


def preference(prompt, chosen, rejected, **more):
    more = {"source": "human", "round": "r1", "margin": 0.5} | more
    return Preference(
        pair_id=pair_id(prompt, chosen, rejected), prompt=prompt, chosen=chosen, rejected=rejected,
        **{"prompt_id": text_hash(prompt_text(prompt))} | more,
    )  # fmt: skip


PREFERENCES = [
    preference("Where is my parcel?", "On its way.", "No idea.", split="heldout", weight=0.5),
    preference("„Quoted“ 🙂", " leading space", "trailing \n"),
    preference("Where?", "", "blank against this"),
    *(preference(f"tricky {text}", text, f"not {text}") for text in TRICKY),
    preference(MESSAGES, "Là.", "Nowhere."),
]


def write(path, preferences, to):
    return write_items(path, [Sourced(each, "") for each in preferences], to)


def read(path, name=None):
    return [item.preference for item in open_source(path, name)]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("to", ["preferences", "trl"])
def test_pairs_come_back_from_every_kind_of_file(tmp_path, container, to):
    path = tmp_path / container
    rows = PREFERENCES
    if "parquet" in container:
        # A Parquet column has one type: prompts are all text, or all messages.
        rows = [each for each in PREFERENCES if isinstance(each.prompt, str)]
        write(tmp_path / f"m.{container}", PREFERENCES[-1:], to)
        assert read(tmp_path / f"m.{container}") == PREFERENCES[-1:]
    write(path, rows, to)
    assert read(path) == rows


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_same_rows_are_the_same_bytes(tmp_path, container):
    rows = [each for each in PREFERENCES if isinstance(each.prompt, str)]
    for folder in ("one", "two"):
        write(tmp_path / folder / container, rows, "preferences")
    one, two = ((tmp_path / folder / container).read_bytes() for folder in ("one", "two"))
    assert one == two
    if container.endswith(".gz"):
        assert one[4:8] == bytes(4), "the time of packing is not in the file"


def test_message_pairs_come_back_from_both_forms_of_trl(tmp_path):
    rows = [preference(MESSAGES, "Là.", "Nowhere."), preference(MESSAGES[1:], "a", "b")]
    for to in ("trl_messages", "trl_implicit"):
        write(tmp_path / f"{to}.jsonl", rows, to)
        assert read(tmp_path / f"{to}.jsonl") == rows
    row = json.loads((tmp_path / "trl_implicit.jsonl").read_text().splitlines()[1])
    assert row["chosen"] == [*MESSAGES[1:], {"role": "assistant", "content": "a"}]
    assert "prompt" not in row


def test_the_prompt_of_implicit_texts_is_what_both_begin_with(tmp_path):
    row = {"chosen": "The sky is blue.", "rejected": "The sky is bland."}
    write_records(tmp_path / "x.jsonl", [row])
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.prompt, found.chosen, found.rejected) == ("The sky is", " blue.", " bland.")


def test_transcripts_of_hh_come_back_and_split_at_the_last_common_turn(tmp_path):
    shared = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Butterflies?\n\nAssistant:"
    row = {"chosen": shared + " In Oregon.", "rejected": shared + " In the zoo.\n\nHuman: No"}
    write_records(tmp_path / "x.jsonl", [row])
    assert detect(tmp_path / "x.jsonl") == "hh"
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.prompt, found.chosen) == (shared, " In Oregon.")
    write(tmp_path / "y.jsonl", [found], "hh")
    assert (tmp_path / "y.jsonl").read_text() == (tmp_path / "x.jsonl").read_text()


def test_scored_answers_give_all_pairs_with_their_margins_and_equal_ones_a_tie(tmp_path):
    row = {"prompt": "p", "responses": ["a", "b", "c"], "scores": [1, 3.5, 1]}
    write_records(tmp_path / "x.jsonl", [row])
    items = list(open_source(tmp_path / "x.jsonl"))
    pairs = [item.preference for item in items if isinstance(item, Sourced)]
    assert [(each.chosen, each.rejected, each.margin) for each in pairs] == [
        ("b", "a", 2.5),
        ("b", "c", 2.5),
    ]
    (tie,) = [item for item in items if isinstance(item, Voted)]
    assert judge([tie.comparison], tie.judgments, weights={}).ties == 1


def test_ranks_prefer_the_lower_number(tmp_path):
    write_records(tmp_path / "x.jsonl", [{"prompt": "p", "responses": ["a", "b"], "ranks": [2, 1]}])
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.chosen, found.margin) == ("b", 0.0)


def test_scored_pairs_come_back(tmp_path):
    rows = [preference("p", "a", "b", source="", margin=0.5)]
    write(tmp_path / "x.jsonl", rows, "scored")
    assert read(tmp_path / "x.jsonl") == rows


def test_a_pair_without_a_margin_is_written_as_ranks_and_stays_a_preference(tmp_path):
    rows = [preference("p", "good", "bad", source="", margin=margin) for margin in (0.0, 2.5)]
    for name in ("x.jsonl", "x.json", "x.csv", "x.parquet"):
        write(tmp_path / name, rows, "scored")
        assert read(tmp_path / name) == rows
    row = json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])
    assert row["ranks"] == [1, 2]
    assert "scores" not in row


@pytest.mark.parametrize("to", ["preferences", "trl"])
def test_a_margin_below_zero_is_refused_with_its_place(tmp_path, to):
    write(tmp_path / "x.jsonl", [preference("p", "good", "bad", margin=-0.5)], to)
    with pytest.raises(MalformedDataError) as caught:
        read(tmp_path / "x.jsonl")
    expected = f'{tmp_path}/x.jsonl:1: field "margin": expected at least 0, got -0.5'
    assert str(caught.value) == expected


def test_only_columns_of_the_format_are_taken_from_scored_answers(tmp_path):
    row = {"prompt": "p", "responses": ["a", "b"], "scores": [1, 0], "weight": "heavy"}
    write_records(tmp_path / "x.jsonl", [row])
    source = open_source(tmp_path / "x.jsonl")
    (item,) = source
    assert item.preference.weight == 1.0
    assert source.left_out == {"weight"}


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
    with pytest.raises(MalformedDataError, match=r"x\.jsonl:1: .*too far apart"):
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
def test_only_the_last_revision_of_a_judgment_is_written_and_for_the_answer_it_means(tmp_path, to):
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


def test_a_turn_that_both_answers_begin_with_is_refused_since_hh_takes_it_for_the_prompt(tmp_path):
    turn = "Hi.\n\nHuman: And?\n\nAssistant:"
    with pytest.raises(MalformedDataError, match="turn that both answers begin with"):
        write(tmp_path / "x.jsonl", [preference("p", turn + " yes", turn + " no")], "hh")
    assert list(tmp_path.iterdir()) == []


VOTES = {
    "prompt": "p", "response_a": "x", "response_b": "y",
    "votes": ["a", "b", "a", "tie", "a", "skip", "both_bad"],
    "workers": ["w1", "w2", "w3", "w4", "w5", "w6", "w7"], "round": "r1", "prompt_id": "p1",
}  # fmt: skip


@pytest.mark.parametrize("to", ["votes", "label_studio", "judgments"])
def test_votes_come_back_with_their_workers(tmp_path, to):
    write_records(tmp_path / "in.jsonl", [VOTES])
    items = list(open_source(tmp_path / "in.jsonl"))
    out = tmp_path / ("out" if to == "judgments" else "out.json")
    write_items(out, items, to)
    assert detect(out) == to
    (back,) = open_source(out)
    (first,) = items
    assert isinstance(back, Voted)
    assert isinstance(first, Voted)
    assert [(each.annotator_id, each.choice) for each in back.judgments] == list(
        zip(VOTES["workers"], VOTES["votes"], strict=True)
    )
    assert back.comparison == first.comparison


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


def test_label_studio_as_it_exports_it(tmp_path):
    task = {
        "id": 1,
        "data": {"prompt": "p", "response_a": "x", "response_b": "y", "pair_id": "1"},
        "annotations": [
            {
                "completed_by": {"id": 7, "email": "a@b.c"},
                "was_cancelled": False,
                "lead_time": 1.5,
                "ground_truth": False,
                "result": [
                    {
                        "from_name": "pref",
                        "to_name": "a,b",
                        "type": "pairwise",
                        "value": {"selected": "right"},
                    }
                ],
            }
        ],
    }
    (tmp_path / "x.json").write_text(json.dumps([task]))
    (item,) = open_source(tmp_path / "x.json")
    assert isinstance(item, Voted)
    assert [(each.annotator_id, each.choice) for each in item.judgments] == [("7", "b")]


def test_workers_that_are_numbers_are_read_as_text(tmp_path):
    write_records(tmp_path / "x.jsonl", [VOTES | {"votes": ["a", "b"], "workers": [7, "8"]}])
    (item,) = open_source(tmp_path / "x.jsonl")
    assert [each.annotator_id for each in item.judgments] == ["7", "8"]


def test_keys_of_messages_that_are_null_are_left_out(tmp_path):
    extra = {"name": None, "tool_calls": None}
    rows = {
        "trl": {
            "prompt": [turn | extra for turn in MESSAGES],
            "chosen": [{"role": "assistant", "content": "a"} | extra],
            "rejected": [{"role": "assistant", "content": "b"} | extra],
        },
        "task": {
            "data": {"prompt": [turn | extra for turn in MESSAGES]}
            | {"response_a": "a", "response_b": "b"},
            "annotations": [{"result": [{"value": {"selected": "left"}}]}],
        },
    }
    for name, row in rows.items():
        write_records(tmp_path / f"{name}.parquet", [row])
    (pair,) = read(tmp_path / "trl.parquet")
    (task,) = open_source(tmp_path / "task.parquet")
    assert pair.prompt == MESSAGES == task.comparison.prompt
    assert pair.pair_id == pair_id(MESSAGES, "a", "b") == task.comparison.pair_id


def test_a_key_of_a_message_that_is_not_null_is_refused(tmp_path):
    write_records(tmp_path / "x.jsonl", [
        {"prompt": [MESSAGES[1] | {"name": "Jo"}], "chosen": "a", "rejected": "b"}
    ])  # fmt: skip
    with pytest.raises(MalformedDataError, match="message 1: expected"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("system", [[], MESSAGES[:1]], ids=["user first", "system first"])
def test_a_prompt_that_conversations_begin_with_is_not_an_answer(tmp_path, system):
    shared = [
        *system, {"role": "user", "content": "p"},
        {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"},
    ]  # fmt: skip
    row = {
        "prompt": "p",
        "chosen": [*shared, {"role": "assistant", "content": "a"}],
        "rejected": [*shared, {"role": "assistant", "content": "b"}],
    }
    write_records(tmp_path / "x.jsonl", [row])
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.prompt, found.chosen, found.rejected) == (shared, "a", "b")
    other = row | {"prompt": "other"}
    write_records(tmp_path / "x.jsonl", [other])
    with pytest.raises(MalformedDataError, match="one message of the assistant"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("container", ["x.jsonl", "x.csv", "x.parquet"])
def test_null_in_a_column_that_only_some_rows_need_is_as_if_it_were_not_there(tmp_path, container):
    rows = [each.to_row() for each in PREFERENCES[:2]]
    rows[0] |= {"label": 0.75, "annotator_version": "v"}
    rows[1] |= {"label": None, "annotator_version": None, "margin": None}
    write_records(tmp_path / container, rows)
    first, second = read(tmp_path / container)
    assert (first.label, first.annotator_version, first.margin) == (0.75, "v", 0.5)
    assert (second.label, second.annotator_version, second.margin) == (1.0, "", 0.0)


@pytest.mark.parametrize("container", ["x.jsonl", "x.csv", "x.parquet"])
@pytest.mark.parametrize("nulls", [
    {"prompt": "p", "chosen": "a", "rejected": "b", "margin": None, "split": None},
    {"prompt": "p", "responses": ["a", "b"], "scores": [1, 0], "ranks": None},
    {"prompt": "p", "response_a": "a", "response_b": "b", "votes": ["a"], "workers": ["w"]},
], ids=["trl", "scored", "votes"])  # fmt: skip
def test_null_where_a_format_needs_nothing_is_as_if_it_were_not_there(tmp_path, container, nulls):
    write_records(tmp_path / container, [nulls | {"prompt_id": None, "round": None}])
    (item,) = open_source(tmp_path / container)
    record = item.preference if isinstance(item, Sourced) else item.comparison
    assert record.prompt_id == text_hash("p")


def test_annotations_of_nobody_are_of_different_annotators(tmp_path):
    result = [{"value": {"selected": "left"}}, {"value": {"choices": 5}}]
    entries = [{"completed_by": who, "result": result} for who in (None, {"id": None}, 7)]
    data = {"prompt": "p", "response_a": "x", "response_b": "y"}
    (tmp_path / "x.json").write_text(json.dumps([{"data": data, "annotations": entries}]))
    (item,) = open_source(tmp_path / "x.json")
    assert [each.annotator_id for each in item.judgments] == ["annotator 1", "annotator 2", "7"]


def test_unpaired_completions_come_back_as_pairs_and_lone_ones_are_counted(tmp_path):
    rows = [preference("p", "good", "bad"), preference("q", "yes", "no")]
    bare = [preference(each.prompt, each.chosen, each.rejected, source="", round="", margin=0.0)
            for each in rows]  # fmt: skip
    write(tmp_path / "x.csv", rows, "unpaired")
    assert read(tmp_path / "x.csv") == bare
    write(tmp_path / "x.jsonl", rows, "unpaired")
    lines = [*read_records(tmp_path / "x.jsonl")]
    extra = {"prompt": "r", "completion": "alone", "label": True, "prompt_id": "r"}
    write_records(tmp_path / "y.jsonl", [*(line.row for line in lines), extra])
    source = open_source(tmp_path / "y.jsonl")
    assert len(list(source)) == 2
    assert source.alone == 1


def test_an_answer_of_two_pairs_is_one_completion(tmp_path):
    write(tmp_path / "x.jsonl", [preference("p", "a", "b"), preference("p", "a", "c")], "unpaired")
    rows = [line.row for line in read_records(tmp_path / "x.jsonl")]
    assert [(row["completion"], row["label"]) for row in rows] == [
        ("a", True),
        ("b", False),
        ("c", False),
    ]


def test_columns_that_a_format_does_not_know_are_named(tmp_path):
    write_records(
        tmp_path / "x.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "b", "mood": 1}]
    )
    source = open_source(tmp_path / "x.jsonl")
    list(source)
    assert source.left_out == {"mood"}


def test_a_folder_is_read_file_by_file_in_order(tmp_path):
    for name, answer in (("b.csv", "two"), ("a.jsonl.gz", "one")):
        write(tmp_path / name, [preference("p", answer, "x")], "trl")
    (tmp_path / "README.txt").write_text("no data")
    assert [each.chosen for each in read(tmp_path)] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.txt", b"", "the name ends in none of"),
        ("x.json", b'{"a": 1}', "expected a list of objects"),
        ("x.json", b"[1]", "item 1: expected an object"),
        ("x.json", b'[{"prompt": NaN}]', "NaN is not a JSON number"),
        ("x.json", b'[{"chosen": "\\u0000", "rejected": ""}]', '"chosen": holds a NUL'),
        ("x.json", b"", "not JSON"),
        ("x.csv", b"chosen,rejected\na,b,c\n", ":2: 3 cells, expected 2"),
        ("x.csv", b"chosen,chosen\na,b\n", ":1: a column name occurs twice"),
        ("x.csv", b'chosen,rejected\n"a,b\n', "not CSV: unexpected end of data"),
        ("x.csv", b"chosen,rejected\n\xff,b\n", "not UTF-8"),
        ("x.csv", b'chosen,rejected\n"[{""role"": ""bot""}]",b\n', 'field "chosen"'),
        ("x.parquet", b"PAR1 and nothing", "damaged Parquet file"),
        ("x.parquet", b"", "damaged Parquet file"),
        ("x.json.gz", b"plain", "damaged gzip file"),
        ("x.parquet.gz", gzip.compress(b"x" * 100, mtime=0)[:-5], "damaged gzip file"),
        ("x.jsonl", b'{"a": 1}', "columns of no known format (a)"),
        ("x.jsonl", b"", "no row to tell the format from"),
        ("x.jsonl", b'{"chosen": "a", "rejected": [{"role": "user", "content": ""}]}', "messages"),
        ("x.jsonl", b'{"prompt": "p", "responses": ["a"], "scores": [1]}', "1 responses and 1"),
        ("x.jsonl", b'{"prompt": "p", "responses": ["a", 1], "scores": [1, 2]}', "list of texts"),
        ("x.jsonl", b'{"prompt": "p", "responses": ["a", "b"], "scores": [1, "2"]}', "numbers"),
        ("x.jsonl", json.dumps(VOTES | {"votes": ["a"]}).encode(), "1 votes of 7 workers"),
        ("x.jsonl", json.dumps(VOTES | {"votes": ["c"] * 7}).encode(), "one of a, b, tie"),
        ("x.jsonl", json.dumps(VOTES | {"workers": ["w"] * 7}).encode(), "one votes twice"),
        ("x.jsonl", b'{"data": {"prompt": "p"}, "annotations": []}', '"response_a": missing'),
    ],
)  # fmt: skip
def test_each_damaged_file_gives_one_line_with_its_place(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MalformedDataError) as caught:
        list(open_source(path))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_pair_id_of_other_content_is_refused(tmp_path):
    row = PREFERENCES[0].to_row() | {"chosen": "changed"}
    write_records(tmp_path / "x.jsonl", [row])
    with pytest.raises(MalformedDataError, match='field "pair_id": expected'):
        read(tmp_path / "x.jsonl")


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    rows = [preference([{"role": "tool", "content": "x"}], "a", "b")]
    with pytest.raises(MalformedDataError, match="HH has no turns of tool"):
        write(tmp_path / "x.jsonl", rows, "hh")
    assert list(tmp_path.iterdir()) == []


REAL = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.parametrize("name", ["hh_helpful", "ukp_arguments", "polite_instructions"])
def test_real_data_come_back_from_every_format_for_pairs(tmp_path, name):
    path = REAL / name / "preferences.jsonl"
    if not path.exists():
        pytest.skip(f"the real data are not beside the project ({path})")
    source = Source(path, "trl")
    rows = list(source)[::8]
    assert source.left_out == {"id", "meta"}
    texts = [(each.preference.prompt, each.preference.chosen) for each in rows]
    outs = [("trl", "x.csv"), ("trl", "x.parquet"), ("preferences", "x.jsonl.gz"),
            ("scored", "s.json"), ("votes", "v.jsonl"), ("label_studio", "l.json")]  # fmt: skip
    if name == "hh_helpful":
        outs.append(("hh", "h.jsonl"))
    for to, file in outs:
        write_items(tmp_path / file, rows, to)
        back = [
            each.preference if isinstance(each, Sourced)
            else judge([each.comparison], each.judgments, weights={}).rows[0].preference
            for each in open_source(tmp_path / file)
        ]  # fmt: skip
        assert [(each.prompt, each.chosen) for each in back] == texts, to


def test_a_vote_of_a_preference_keeps_who_said_it():
    voted = voted_of(PREFERENCES[0], "x:1")
    assert voted.judgments[0].annotator_id == "human"
    assert as_votes(voted) is voted
