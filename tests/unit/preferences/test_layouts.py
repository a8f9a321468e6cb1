"""Rows of well-known sets are read as published, and refused with the name of their map."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preferences.__main__ import main
from preferences.formats.files import write_records
from preferences.formats.known_layouts import KNOWN_LAYOUTS
from preferences.formats.maps import layout_of
from preferences.formats.reading import open_source
from preferences.reader import MalformedDataError
from preferences.source_params import SourceParams
from preferences.sources import gather
from tests.unit.preferences.layout_rows import alpaca, assistant, settled, user, write


def panda(number, *votes, more="in"):
    names = ("annotator1", "annotator2", "annotator3")
    return {
        "idx": number,
        "motivation_app": "Grammarly",
        "cmp_key": "bloom-7b_llama-7b",
        "instruction": f"i{number}",
        "input": more,
        "response1": "one",
        "response2": "two",
        **dict(zip(names, votes, strict=True)),
    }


def message(key, parent, role, text, rank=None, **more):
    return {
        "message_id": key, "parent_id": parent, "role": role, "text": text, "rank": rank,
        "lang": "en", "deleted": False, "message_tree_id": "m1", **more,
    }  # fmt: skip


MESSAGES = [
    message("m1", None, "prompter", "Hello?"),
    message("m2", "m1", "assistant", "worse", 1),
    message("m3", "m1", "assistant", "better", 0),
    message("m4", "m1", "assistant", "deleted", 2, deleted=True),
    message("m5", "m3", "prompter", "And?", 0),
    message("m6", "m3", "prompter", "Or?", 1),
    message("m7", "m5", "assistant", "first", 0),
    message("m8", "m5", "assistant", "second", 1),
    message("m9", "m6", "assistant", "alone", 0),
]


def tree(key="m1"):
    node = dict(next(each for each in MESSAGES if each["message_id"] == key))
    return {**node, "replies": [tree(c["message_id"]) for c in MESSAGES if c["parent_id"] == key]}


OASST = [
    ([user("Hello?")], "better", "worse", 0.0, 1.0),
    ([user("Hello?"), assistant("better"), user("And?")], "first", "second", 0.0, 1.0),
]
SETS = {
    "alpaca_eval": (
        [alpaca(1, 1), alpaca(2, 2.0), alpaca(3, 0), alpaca(4, 1.5), alpaca(5, 1.9)],
        [
            ("i1", "one", "two", 0.0, 1.0),
            ("i2", "two", "one", 0.0, 1.0),
            ("i3", "one", "two", 0.0, 0.5),
            ("i4", "one", "two", 0.0, 0.5),
            ("i5", "two", "one", 0.0, 1.0),
        ],
    ),
    "pandalm": (
        [panda(1, 1, 1, 2), panda(2, 2, 0, 2, more=float("nan")), panda(3, 0, 0, 0)],
        [
            ("i1\n\nin", "one", "two", 0.0, 1.0),
            ("i2", "two", "one", 0.0, 1.0),
            ("i3\n\nin", "one", "two", 0.0, 0.5),
        ],
    ),
    "llmbar": (
        [{"input": f"i{n}", "output_1": "one", "output_2": "two", "label": n} for n in (1, 2)],
        [("i1", "one", "two", 0.0, 1.0), ("i2", "two", "one", 0.0, 1.0)],
    ),
    "oasst": (
        [{"message_tree_id": "m1", "tree_state": "ready_for_export", "prompt": tree()}],
        OASST,
    ),
    "ultrafeedback": (
        [
            {
                "source": "sharegpt",
                "instruction": "i",
                "models": ["m", "n", "o"],
                "completions": [
                    {"model": name, "response": name, "overall_score": 9, "fine-grained_score": s}
                    for name, s in (("m", 4.25), ("n", 5.0), ("o", 4.25))
                ],
                "correct_answers": ["None"],
                "incorrect_answers": ["None"],
            }
        ],
        [
            ("i", "n", "m", 0.75, 1.0),
            ("i", "m", "o", 0.0, 0.5),
            ("i", "n", "o", 0.75, 1.0),
        ],
    ),
    "ultrafeedback_overall": (
        [
            {
                "source": "sharegpt", "instruction": "i", "models": ["m", "n"],
                "completions": [
                    {
                        "annotations": {"honesty": {"Rating": "5", "Rationale": "r"}},
                        "critique": "c", "custom_system_prompt": "s", "model": name,
                        "overall_score": score, "principle": "honesty", "response": name,
                    }
                    for name, score in (("m", 7.5), ("n", 8.0))
                ],
                "correct_answers": ["None"], "incorrect_answers": ["None"],
            }
        ],
        [("i", "n", "m", 0.5, 1.0)],
    ),
    "shp": (
        [
            {
                "post_id": "qt3nxl", "domain": "askculinary_train", "upvote_ratio": 0.98,
                "history": f"h{label}", "c_root_id_A": "a", "c_root_id_B": "b",
                "human_ref_A": "one", "human_ref_B": "two", "labels": label,
                "score_A": 340, "score_B": 20, "score_ratio": 17.0,
            }
            for label in (1, 0)
        ],
        [("h1", "one", "two", 0.0, 1.0), ("h0", "two", "one", 0.0, 1.0)],
    ),
    "webgpt": (
        [
            {
                "question": {"dataset": "triviaqa", "id": "1", "full_text": f"q{score}"},
                "quotes_0": {"title": ["t"], "extract": ["e"]},
                "answer_0": "one", "tokens_0": {"prefix": [1], "completion": [2]},
                "score_0": score,
                "quotes_1": {"title": [], "extract": []},
                "answer_1": "two", "tokens_1": {"prefix": [1], "completion": [2]},
                "score_1": -score,
            }
            for score in (0.75, -0.25, 0.0)
        ],
        [
            ("q0.75", "one", "two", 1.5, 1.0),
            ("q-0.25", "two", "one", 0.5, 1.0),
            ("q0.0", "one", "two", 0.0, 0.5),
        ],
    ),
    "nectar": (
        [
            {
                "prompt": "\n\nHuman: Hi \n\nAssistant: ",
                "answers": [
                    {"answer": "best", "model": "gpt-4", "rank": 1.0},
                    {"answer": "last", "model": "llama", "rank": 2.0},
                ],
                "turns": 1, "num_responses": 2, "source": ["sharegpt"], "good_natured": True,
            }
        ],
        [("\n\nHuman: Hi \n\nAssistant: ", "best", "last", 0.0, 1.0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN_LAYOUTS)
def test_rows_of_a_well_known_set_are_read_as_published(tmp_path, name):
    rows, expected = SETS[name]
    assert settled(write(tmp_path / "x.jsonl", rows), name) == expected


@pytest.mark.parametrize("name", KNOWN_LAYOUTS)
def test_a_well_known_set_without_its_map_is_refused_with_the_name_of_the_map(tmp_path, name):
    rows, _ = SETS[name]
    path = write(
        tmp_path / "x.jsonl", [{**rows[0], "input": "x"} if name == "pandalm" else rows[0]]
    )
    with pytest.raises(MalformedDataError, match=f"as in {name}: --map {name}"):
        open_source(path)


def ultra(*scores, name="fine-grained_score"):
    """A row of UltraFeedback; a score of "missing" is not there."""
    return {
        "instruction": "i",
        "completions": [
            {"response": f"r{n}", **({} if score == "missing" else {name: score})}
            for n, score in enumerate(scores)
        ],
    }


@pytest.mark.parametrize("nothing", [None, float("nan"), "missing"])
def test_responses_that_nobody_rated_form_no_pair_and_are_counted(tmp_path, capsys, nothing):
    path = write(tmp_path / "x.jsonl", [ultra(2.5, nothing, 4, nothing), ultra(1, 2)])
    expected = [("i", "r2", "r0", 1.5, 1.0), ("i", "r1", "r0", 1.0, 1.0)]
    assert settled(path, "ultrafeedback") == expected
    source = open_source(path, layout=layout_of("ultrafeedback"))
    assert len(list(source)) == 2
    assert len(list(source)) == 2
    assert source.alone == 2
    (gathered,) = gather([SourceParams(path=str(path), map="ultrafeedback")], heldout_fraction=0.5)
    assert gathered.to_row()["without_opponent"] == 2
    main(["check", str(path), "--map", "ultrafeedback"])
    assert "completions without a counterpart: 2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (ultra(None, 4), "1 of 2 responses have one of the scores, expected at least 2"),
        (ultra(None, None), "0 of 2 responses have one of the scores, expected at least 2"),
        (ultra("missing", "missing"), 'fine-grained_score": nothing at "fine-grained_score"'),
        (ultra(), "found 0 responses"),
        (ultra("high", 4), 'field "scores": expected a list of numbers'),
    ],
)
def test_a_row_with_fewer_than_two_rated_responses_has_its_place(tmp_path, row, problem):
    path = write(tmp_path / "x.jsonl", [ultra(1, 2), row])
    with pytest.raises(MalformedDataError) as error:
        settled(path, "ultrafeedback")
    assert str(error.value).startswith(f"{path}:2: ")
    assert problem in str(error.value)
    assert len(settled(path, "ultrafeedback", skip_malformed=1)) == 1


def test_messages_of_open_assistant_one_per_row_give_the_same_pairs(tmp_path):
    path = write(tmp_path / "x.jsonl", MESSAGES[::-1])
    assert sorted(map(str, settled(path, "oasst"))) == sorted(map(str, OASST))


@pytest.mark.parametrize(("true", "false"), [("True", "False"), ("true", ""), ("TRUE", "FALSE")])
def test_messages_of_open_assistant_in_a_table_of_text_give_the_same_pairs(tmp_path, true, false):
    rows = [{**row, "deleted": true if row["deleted"] else false} for row in MESSAGES]
    write_records(tmp_path / "x.csv", rows)
    assert sorted(map(str, settled(tmp_path / "x.csv", "oasst"))) == sorted(map(str, OASST))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{**MESSAGES[1], "deleted": "maybe"}],
         ':1: field "deleted": expected true or false, got "maybe"'),
        ([{**MESSAGES[1], "rank": "best"}], ':1: field "rank": expected a number, got "best"'),
        ([message("m2", "m1", "assistant", "a", 0), message("m3", "m1", "assistant", "b", 1)],
         ":1: field \"parent_id\": that message is not among the data"),
        ([message("m1", "m1", "prompter", "q"), message("m2", "m1", "assistant", "a", 0),
          message("m3", "m1", "assistant", "b", 1)], "over 200 messages before this one"),
        ([MESSAGES[0], MESSAGES[0]], ':2: field "message_id": occurs twice'),
        ([message("m1", None, "bot", "q")], '"role" of prompter or assistant'),
        ([{"prompt": {**MESSAGES[0], "replies": [3]}}], "replies: expected objects"),
        ([{"prompt": {**MESSAGES[0], "replies": {}, "text": 3}}], 'expected messages with "text"'),
        ([{"mood": 1}], 'expected "prompt" with "replies", or "message_id"'),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_said_with_its_place(tmp_path, rows, problem):
    with pytest.raises(MalformedDataError) as error:
        settled(write(tmp_path / "x.jsonl", rows), "oasst")
    assert problem in str(error.value)


def test_nan_in_a_table_is_as_null_as_in_json(tmp_path):
    rows = [
        {
            "instruction": "i",
            "completions": [
                {"response": text, "fine-grained_score": score}
                for text, score in (("a", 4.0), ("b", 2.0), ("c", float("nan")))
            ],
        }
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")

    expected = settled(write(tmp_path / "x.jsonl", rows), "ultrafeedback")

    assert settled(tmp_path / "x.parquet", "ultrafeedback") == expected == [("i", "a", "b", 2, 1)]
