"""Columns as other people name them: maps, known layouts, workbooks, malformed rows set aside."""

import json
import re

import pytest

from preferences.__main__ import main
from preferences.formats.known_layouts import KNOWN_LAYOUTS
from preferences.formats.maps import layout_of
from preferences.formats.reading import open_source
from preferences.formats.writing import Unsettled
from preferences.reader import MAX_ROW_BYTES, MalformedDataError
from preferences.source_params import SourceParams
from preferences.sources import gather
from tests.malformed import VOTES


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settled(path, text, **options):
    """(prompt, chosen, rejected, margin, label) of all pairs, ties included."""
    source = open_source(path, layout=layout_of(text), **options)
    rows = [each.preference for each in Unsettled().settle(source, keep_ties=True)]
    return [(row.prompt, row.chosen, row.rejected, row.margin, row.label) for row in rows]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def alpaca(number, preference):
    return {
        "dataset": "helpful_base",
        "instruction": f"i{number}",
        "output_1": "one",
        "generator_1": "text_davinci_003",
        "output_2": "two",
        "generator_2": "other",
        "annotator": "alpaca_eval_gpt4",
        "preference": preference,
    }


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


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
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


def test_a_map_as_in_the_issue_on_the_command_line(tmp_path, capsys):
    rows = [{**alpaca(n, 1), "output_1": f"one {n}", "output_2": f"two {n}"} for n in range(60)]
    path = write(tmp_path / "x.jsonl", rows)
    text = "prompt=instruction,response_a=output_1,response_b=output_2,choice=preference:1|2|0"
    out = tmp_path / "out"
    assert main(["check", str(path), "--map", text, "--report", str(out)]) == 0
    said = capsys.readouterr().out
    assert "format votes, 60 pairs" in said
    assert "columns not read: 'annotator', 'dataset', 'generator_1', 'generator_2'" in said
    train = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert train
    assert all(row["chosen"].startswith("one") for row in train)
    assert (
        main(["convert", str(path), str(tmp_path / "y.jsonl"), "--to", "trl", "--map", text]) == 0
    )
    assert main(["check", str(path), "--map", "prompt=x"]) == 2
    assert capsys.readouterr().err.startswith("--map: map: the fields form no pair")


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("prompt=q,chosen=w,rejected=l", {"q": "p", "w": "a", "l": "b"}, ("p", "a", "b", 0.0, 1.0)),
        ("prompt=q,chosen=w,rejected=l,margin=m", {"q": "p", "w": "a", "l": "b", "m": 0.5},
         ("p", "a", "b", 0.5, 1.0)),
        ("chosen=w,rejected=l",
         {"w": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "a"}],
          "l": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "b"}]},
         ([user("p")], "a", "b", 0.0, 1.0)),
        ("response_a=conversation_a,response_b=conversation_b,choice=winner:model_a|model_b|"
         "tie/tie (bothbad)",
         {"conversation_a": [{**user("p"), "id": 1}, assistant("a")],
          "conversation_b": [user("p"), assistant("b")], "winner": "model_b"},
         ([user("p")], "b", "a", 0.0, 1.0)),
        ("response_a=conversation_a,response_b=conversation_b,choice=winner:model_a|model_b|"
         "tie/tie (bothbad)",
         {"conversation_a": [user("p"), assistant("a")],
          "conversation_b": [user("p"), assistant("b")], "winner": "tie (bothbad)"},
         ([user("p")], "a", "b", 0.0, 0.5)),
        ("prompt=q,response_a=a,response_b=b,choice=c",
         {"q": "p", "a": [user("p"), assistant("x")], "b": [assistant("y")], "c": "b"},
         ("p", "y", "x", 0.0, 1.0)),
        ("prompt=meta.q,responses=texts,scores=ratings",
         {"meta": {"q": "p"}, "texts": ["a", "b"], "ratings": ["1.5", "4"]},
         ("p", "b", "a", 2.5, 1.0)),
        ("prompt=turns.0.content,response_a=turns.1.content,response_b=turns.-1.content,"
         "score_a=s.a,score_b=s.b",
         {"turns": [user("p"), assistant("a"), assistant("b")], "s": {"a": 1, "b": 0.25}},
         ("p", "a", "b", 0.75, 1.0)),
        ("prompt=a.b,chosen=w,rejected=l", {"a.b": "p", "w": "a", "l": "b"},
         ("p", "a", "b", 0.0, 1.0)),
        ("prompt=p,response_a=a,response_b=b,votes=v:1|2|0",
         {"p": "p", "a": "a", "b": "b", "v": [1, 2, 2]}, ("p", "b", "a", 0.0, 1.0)),
        ("prompt=p,response_a=a,response_b=b,choice=v:true|false",
         {"p": "p", "a": "a", "b": "b", "v": False}, ("p", "b", "a", 0.0, 1.0)),
    ],
)  # fmt: skip
def test_a_map_finds_the_fields_of_a_row(tmp_path, text, row, expected):
    assert settled(write(tmp_path / "x.jsonl", [row]), text) == [expected]


def test_a_map_of_completions(tmp_path):
    rows = [{"q": "p", "text": text, "ok": ok} for text, ok in (("a", "up"), ("b", "down"))]
    path = write(tmp_path / "x.jsonl", rows)
    assert settled(path, "prompt=q,completion=text,label=ok:up|down") == [("p", "a", "b", 0.0, 1.0)]


@pytest.mark.parametrize("label", [None, "", 0.5, "middle"])
def test_a_label_that_says_neither_is_refused(tmp_path, label):
    rows = [{"q": "p", "text": text, "ok": ok} for text, ok in (("a", 1), ("b", label))]
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(
        MalformedDataError, match=r':2: column "ok": got .*, expected 1 .a., 0 .b.$'
    ):
        settled(path, "prompt=q,completion=text,label=ok:1|0|middle")


@pytest.mark.parametrize(
    ("codes", "given", "chosen"),
    [
        ("true|false", "True", "a"),
        ("true|false", "FALSE", "b"),
        ("Model_A|model_b", "model_a", "a"),
        ("x|X", "X", "b"),
    ],
)
def test_a_choice_in_other_case_is_the_same_unless_both_are_expected(
    tmp_path, codes, given, chosen
):
    (tmp_path / "x.csv").write_text(f"q,a,b,c\np,a,b,{given}\n")
    found = settled(tmp_path / "x.csv", f"prompt=q,response_a=a,response_b=b,choice=c:{codes}")
    assert found[0][1] == chosen


def test_a_conversation_in_a_cell_is_read_as_messages(tmp_path):
    cells = [
        json.dumps([{"from": "human", "value": "p"}, {"from": "gpt", "value": text}])
        for text in ("a", "b")
    ]
    quoted = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
    (tmp_path / "x.csv").write_text(f"c,r\n{quoted}\n")
    expected = [([user("p")], "a", "b", 0.0, 1.0)]
    assert settled(tmp_path / "x.csv", "chosen=c,rejected=r") == expected


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.tab"])
def test_a_map_of_cells(tmp_path, name):
    separator = "," if name == "x.csv" else "\t"
    rows = ["q,one,two,winner,meta", 'p,a,"b ""c""",2,{}', 'p,"[1]",null,1.0,{}', "p,a,b,,{}"]
    (tmp_path / name).write_text("\n".join(rows).replace(",", separator) + "\n")
    text = "prompt=q,response_a=one,response_b=two,choice=winner:1|2|0"
    assert settled(tmp_path / name, text) == [
        ("p", 'b "c"', "a", 0.0, 1.0),
        ("p", "[1]", "null", 0.0, 1.0),
    ]
    scores = "question\tgood\tbad\tx\ty\nq\ta\tb\t0.5\t2\n"
    (tmp_path / "s.tsv").write_text(scores)
    text = "prompt=question,response_a=good,response_b=bad,score_a=x,score_b=y"
    assert settled(tmp_path / "s.tsv", text) == [("q", "b", "a", 1.5, 1.0)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"preference": 7}, 'column "preference": got 7, expected 1 (a), 2 (b), 0 (tie)'),
        ({"preference": "x"}, 'got "x", expected 1 (a)'),
        ({"output_1": None}, 'field "response_a": expected text, got null'),
        ({"output_1": [user("x")]}, "expected a single assistant message as response, got 1 turns"),
        ({"instruction": 5}, 'field "prompt": expected text or messages, got 5'),
    ],
)
def test_a_row_that_a_map_does_not_fit_has_its_place_and_cause(tmp_path, change, problem):
    path = write(tmp_path / "x.jsonl", [alpaca(1, 1), {**alpaca(2, 1), **change}])
    with pytest.raises(MalformedDataError) as error:
        settled(path, "alpaca_eval")
    assert str(error.value).startswith(f"{path}:2: ")
    assert problem in str(error.value)
    missing = {name: value for name, value in alpaca(1, 1).items() if name != "output_2"}
    with pytest.raises(MalformedDataError, match=':1: column "output_2": missing'):
        settled(write(path, [missing]), "alpaca_eval")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alpaca", "map is 'alpaca', expected field=column,... or one of alpaca_eval, "),
        ("prompt=a", "the fields form no pair"),
        ("prompt=a,prompt=b", "field 'prompt' occurs twice"),
        ("prompt=,chosen=a,rejected=b", "field 'prompt' has no column"),
        ("chosen=a,rejected=b,mood=c", "unknown field 'mood'"),
        ("response_a=a,response_b=b,choice=c:1", "expected values as in"),
        ("prompt=a:1|2,chosen=a,rejected=b", "expected values as in"),
        ("chosen=a,rejected=b,label=c:1|0", "values for label are known only with completion"),
        ("chosen=a+b,rejected=b", "+ joins prompts and votes"),
        ("responses=a,scores=b", "the fields form no pair"),
    ],
)
def test_a_wrong_map_is_said_at_once(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        layout_of(text)
    with pytest.raises(ValueError, match=r"^prepare\.sources: map"):
        SourceParams(path="x", map=text)


def test_sources_in_params_take_maps_and_set_rows_aside(tmp_path):
    rows = [*({**alpaca(n, 1)} for n in range(20)), {**alpaca(20, 1), "output_1": 5}]
    path = write(tmp_path / "x.jsonl", rows)
    params = SourceParams(path=str(path), map="alpaca_eval", skip_malformed=1)
    (gathered,) = gather([params], heldout_fraction=0.2)
    assert len(gathered.rows) == 20
    assert gathered.to_row()["malformed"] == [
        f'{path}:21: field "response_a": expected text, got 5'
    ]
    with pytest.raises(MalformedDataError, match=':21: field "response_a"'):
        gather([SourceParams(path=str(path), map="alpaca_eval")], heldout_fraction=0.2)
    for wrong in ({"map": "shp", "format": "trl"}, {"skip_malformed": -1}):
        with pytest.raises(ValueError, match=r"prepare\.sources"):
            SourceParams(path="x", **wrong)


GOOD = [
    {"prompt": f"Question {n}?", "chosen": f"Answer {n} with words.", "rejected": f"No {n}."}
    for n in range(60)
]


def test_malformed_rows_are_set_aside_and_listed_up_to_a_number(tmp_path, capsys):
    path, out = tmp_path / "x.jsonl", tmp_path / "out"
    lines = [json.dumps(row) for row in GOOD]
    lines[7:7] = ["{", '{"prompt": 1, "chosen": 2, "rejected": null}']
    path.write_text("\n".join(lines) + "\n")
    arguments = ["check", str(path), "--report", str(out)]
    assert main([*arguments, "--skip-malformed", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 4
    assert not out.exists()
    assert main([*arguments, "--skip-malformed", "2"]) == 0
    said = capsys.readouterr().out
    assert f"malformed rows set aside: 2\n  {path}:8: not JSON" in said
    assert f'  {path}:9: field "prompt": expected text or messages, got 1\n' in said
    listed = json.loads((out / "statistics.json").read_text())["malformed rows set aside"]
    assert [row.partition(": ")[0] for row in listed] == [f"{path}:8", f"{path}:9"]
    assert f"malformed, set aside: {path}:8" in (out / "report.md").read_text().replace("\\", "")
    written = [(out / f"{split}.jsonl").read_text().count("\n") for split in ("train", "heldout")]
    assert sum(written) == 60


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl.gz", b"no gzip"),
        ("joined.jsonl", b'{"prompt": "p", "chosen": "a", "rejected": "b"}{"prompt": "q"}\n'),
        ("nul.jsonl", b'{"prompt": "p"\0\0\0\n'),
        ("long.jsonl", b'{"prompt": "' + b"p" * MAX_ROW_BYTES + b'"}\n'),
        ("cut.jsonl", b'{"prompt": "p", "chosen": "a", "rejected": "b"}\n{"prompt": "p", "cho'),
        ("x.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"}, {]'),
        ("x.csv", b'prompt,chosen,rejected\np,a,b\np,"a,b\n'),
        ("x.parquet", b"PAR1"),
    ],
)
def test_a_damaged_file_is_refused_however_many_rows_may_be_set_aside(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MalformedDataError):
        list(open_source(tmp_path / name, "trl", skip_malformed=1000))


def test_the_format_is_that_of_a_later_row_if_the_first_may_be_set_aside(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"error": "timeout"}, *GOOD])
    with pytest.raises(MalformedDataError, match=":1: columns of no known format"):
        open_source(path)
    source = open_source(path, skip_malformed=1)
    assert len(list(source)) == 60
    assert len(source.aside) == 1


@pytest.mark.parametrize(
    "option",
    [
        *("--max-memory=nan", "--max-memory=inf", "--max-memory=-1", "--max-memory=1e300"),
        *("--max-memory=0", "--max-memory=x", "--skip-malformed=-3", "--skip-malformed=1.5"),
    ],
)
def test_a_limit_that_is_none_is_refused_at_once(capsys, option):
    with pytest.raises(SystemExit) as ended:
        main(["check", "x.jsonl", option])
    assert ended.value.code == 2
    name, value = option.split("=")
    assert f"argument {name}: '{value}', expected" in capsys.readouterr().err


def test_of_a_row_that_is_set_aside_no_pair_is_used(tmp_path):
    far = {"prompt": "p", "responses": ["a", "b", "c"], "scores": [1.7e308, 0, -1.7e308]}
    near = {"prompt": "q", "responses": ["a", "b"], "scores": [1, 0]}
    source = open_source(write(tmp_path / "x.jsonl", [far, near]), skip_malformed=1)
    assert [item.preference.prompt for item in source] == ["q"]
    assert len(source.aside) == 1


def test_a_file_of_equal_length_put_in_its_place_is_noticed(tmp_path):
    path = write(tmp_path / "x.jsonl", GOOD)
    source = open_source(path)
    size = path.stat().st_size
    list(source)
    list(source)
    path.write_text(path.read_text().replace("Answer 7 with words.", " " * 20))
    assert path.stat().st_size == size
    with pytest.raises(MalformedDataError, match="changed while in use: other content"):
        list(source)


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ({"prompt": "p", "chosen": "aa", "rejected": "bb"}, {"chosen": "bb", "rejected": "aa"}),
        ({"prompt": "p", "chosen": "aa", "rejected": "bb", "label": 1.0}, {"label": 0.5}),
        (VOTES, {"votes": ["b"]}),
        (VOTES, {"workers": ["y"]}),
        (VOTES, {"response_b": "c"}),
        ({**VOTES, "finished_a": True, "finished_b": True}, {"finished_a": False}),
    ],
)
def test_answers_labels_or_votes_that_changed_are_other_content(tmp_path, row, change):
    path = write(tmp_path / "x.jsonl", [row])
    source = open_source(path)
    assert list(source) == list(source)
    write(path, [{**row, **change}])
    with pytest.raises(MalformedDataError, match="changed while in use: other content"):
        list(source)


def test_a_workbook_is_read_as_a_table(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["q", "one", "two", "winner"], ["p", "a", 42, 2], [], ["p", True, 1.5, 1.0]):
        book.active.append(row)
    path = tmp_path / "x.xlsx"
    book.save(path)
    text = "prompt=q,response_a=one,response_b=two,choice=winner:1|2|0"
    assert settled(path, text) == [("p", "42", "a", 0.0, 1.0), ("p", "true", "1.5", 0.0, 1.0)]
    book.create_sheet("more")
    book.save(path)
    with pytest.raises(MalformedDataError, match="2 sheets, expected one"):
        settled(path, text)
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(MalformedDataError, match="damaged workbook"):
        settled(path, text)
