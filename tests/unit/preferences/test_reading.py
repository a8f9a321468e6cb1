import gzip
import json

import pytest

from preferences.formats.files import write_records
from preferences.formats.reading import open_source
from preferences.formats.writing import Unsettled
from preferences.loading import load_comparisons
from preferences.reader import MalformedDataError
from preferences.records import Sourced, pair_id, text_hash
from tests.label_studio_tasks import studio_task
from tests.pair_files import (
    MESSAGES,
    PREFERENCES,
    VOTES,
    preference,
    read,
    write,
)


@pytest.mark.parametrize("to", ["preferences", "trl"])
def test_a_margin_below_zero_is_refused_with_its_place(tmp_path, to):
    write(tmp_path / "x.jsonl", [preference("p", "good", "bad", margin=-0.5)], to)
    with pytest.raises(MalformedDataError) as caught:
        read(tmp_path / "x.jsonl")
    expected = f'{tmp_path}/x.jsonl:1: field "margin": expected at least 0, got -0.5'
    assert str(caught.value) == expected


def test_only_columns_of_the_format_are_taken_from_scored_responses(tmp_path):
    row = {"prompt": "p", "responses": ["a", "b"], "scores": [1, 0], "weight": "heavy"}
    write_records(tmp_path / "x.jsonl", [row])
    source = open_source(tmp_path / "x.jsonl")
    (item,) = source
    assert item.preference.weight == 1.0
    assert source.left_out == {"weight"}


def test_judgments_that_contradict_each_other_are_refused_with_their_file_and_pair(tmp_path):
    write(tmp_path / "own", PREFERENCES[:2], "judgments")
    file = tmp_path / "own/judgments.jsonl"
    first = json.loads(file.read_text().splitlines()[0])
    other = {"a": "b", "b": "a"}[first["choice"]]
    with file.open("a") as stream:
        stream.write(json.dumps({**first, "judgment_id": "2", "choice": other}) + "\n")

    with pytest.raises(MalformedDataError) as caught:
        list(open_source(tmp_path / "own"))

    where = f"{tmp_path}/own/comparisons.jsonl pair {first['pair_id']}"
    assert str(caught.value).startswith(f"{where}: judgments ")
    assert 'both are revision 1 of annotator "human"' in str(caught.value)


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
def test_a_prompt_that_conversations_begin_with_is_not_a_response(tmp_path, system):
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
    with pytest.raises(MalformedDataError, match="a single assistant message"):
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
        ("x.txt", b"", "unknown suffix"),
        ("x.json", b'{"a": 1}', "expected a list of objects"),
        ("x.json", b"[1]", "item 1: expected an object"),
        ("x.json", b'[{"prompt": NaN}]', "NaN is not a JSON number"),
        ("x.json", b'[{"chosen": "\\u0000", "rejected": ""}]', '"chosen": contains a NUL'),
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
        ("x.jsonl", b"", "no row to detect the format from"),
        ("x.jsonl", b'{"chosen": "a", "rejected": [{"role": "user", "content": ""}]}', "messages"),
        ("x.jsonl", b'{"prompt": "p", "responses": ["a"], "scores": [1]}', "1 responses and 1"),
        ("x.jsonl", b'{"prompt": "p", "responses": ["a", 1], "scores": [1, 2]}', "list of texts"),
        ("x.jsonl", b'{"prompt": "p", "responses": ["a", "b"], "scores": [1, "2"]}', "numbers"),
        ("x.jsonl", json.dumps(VOTES | {"votes": ["a"]}).encode(), "found 1 votes and 7 workers"),
        ("x.jsonl", json.dumps(VOTES | {"votes": ["c"] * 7}).encode(), "one of a, b, tie"),
        ("x.jsonl", json.dumps(VOTES | {"workers": ["w"] * 7}).encode(), "a worker occurs twice"),
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


FLAGS = ("chosen_finished", "rejected_finished")


def test_a_file_that_leaves_the_flags_out_has_finished_responses(tmp_path):
    write(tmp_path / "own.jsonl", [preference("p", "good", "bad")], "preferences")
    own = json.loads((tmp_path / "own.jsonl").read_text())
    assert [own.pop(name) for name in FLAGS] == [True, True]
    hh = {side: f"\n\nHuman: p\n\nAssistant: {side}" for side in ("chosen", "rejected")}
    rows = [own, {"prompt": "p", "chosen": "good", "rejected": "bad"}, hh]
    rows.append({"prompt": "p", "responses": ["good", "bad"], "ranks": [1, 2]})
    for number, row in enumerate(rows):
        write_records(tmp_path / f"{number}.jsonl", [row])
        (found,) = read(tmp_path / f"{number}.jsonl")
        assert (found.chosen_finished, found.rejected_finished) == (True, True)


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
@pytest.mark.parametrize("to", ["preferences", "trl", "votes"])
def test_the_flag_of_a_cut_response_is_read_from_every_format_that_has_it(tmp_path, name, to):
    cut = preference("p", "good", "bad", rejected_finished=False)
    write(tmp_path / name, [cut, preference("q", "good", "bad")], to)
    flags = []
    for sourced in Unsettled().settle(open_source(tmp_path / name)):
        flags.append((sourced.preference.chosen_finished, sourced.preference.rejected_finished))
    assert flags == [(True, False), (True, True)]


@pytest.mark.parametrize("to", ["preferences", "trl"])
@pytest.mark.parametrize("wrong", ["yes", 1])
def test_a_flag_that_is_not_true_or_false_is_refused_with_its_place(tmp_path, to, wrong):
    write(tmp_path / "x.jsonl", [preference("p", "good", "bad")], to)
    row = json.loads((tmp_path / "x.jsonl").read_text()) | {"rejected_finished": wrong}
    write_records(tmp_path / "x.jsonl", [row])
    with pytest.raises(MalformedDataError) as caught:
        read(tmp_path / "x.jsonl")
    found = json.dumps(wrong)
    assert str(caught.value) == (
        f'{tmp_path}/x.jsonl:1: field "rejected_finished": expected true or false, got {found}'
    )


def test_a_wrong_flag_of_a_comparison_is_refused_with_its_place(tmp_path):
    row = {"pair_id": pair_id("p", "x", "y"), "round": "r1", "prompt_id": "1", "prompt": "p",
           "response_a": "x", "response_b": "y", "policy_a": "k", "policy_b": "l"}  # fmt: skip
    path = tmp_path / "comparisons.jsonl"
    write_records(path, [row])
    (one,) = load_comparisons(path)
    assert (one.finished_a, one.finished_b) == (True, True)
    write_records(path, [row, row | {"finished_a": "no"}])
    with pytest.raises(MalformedDataError, match=r':2: field "finished_a": expected true or false'):
        load_comparisons(path)


PAIR = {"chosen": "a", "rejected": "b"}


@pytest.mark.parametrize("blank", ["", " \n"])
@pytest.mark.parametrize(
    ("row", "field"),
    [
        (PAIR, 'field "prompt"'),
        (preference("p", "a", "b").to_row(), 'field "prompt"'),
        ({"responses": ["a", "b"], "scores": [1, 0]}, 'field "prompt"'),
        (VOTES, 'field "prompt"'),
        ({"completion": "a", "label": True}, 'field "prompt"'),
        (studio_task((7, "left")), 'data: field "prompt"'),
    ],
    ids=["trl", "preferences", "scored", "votes", "unpaired", "label_studio"],
)
def test_a_blank_prompt_is_malformed_in_every_format(tmp_path, row, field, blank):
    if "data" in row:
        wrong, good = ({**row, "data": {**row["data"], "prompt": asked}} for asked in (blank, "p"))
    else:
        wrong, good = {**row, "prompt": blank}, {**row, "prompt": "p"}
    write_records(tmp_path / "x.jsonl", [wrong, good, good])

    with pytest.raises(MalformedDataError) as caught:
        list(open_source(tmp_path / "x.jsonl"))

    expected = f"{tmp_path}/x.jsonl:1: {field}: expected text, got "
    assert str(caught.value).startswith(expected)
    source = open_source(tmp_path / "x.jsonl", skip_malformed=1)
    list(source)
    assert len(source.aside) == 1


def test_conversations_without_a_message_in_common_have_no_prompt(tmp_path):
    sides = {side: [{"role": "assistant", "content": text}] for side, text in PAIR.items()}
    write_records(tmp_path / "x.jsonl", [sides])
    with pytest.raises(MalformedDataError, match="begin with no message in common"):
        read(tmp_path / "x.jsonl")
