"""Maps: columns by the names that a user gives them, in rows, cells and workbooks."""

import json
import re

import pytest

from preferences.__main__ import main
from preferences.formats.maps import layout_of
from preferences.formats.reading import open_source
from preferences.reader import MalformedDataError
from preferences.source_params import SourceParams
from tests.unit.preferences.layout_rows import alpaca, assistant, settled, user, write


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


def test_a_turn_that_calls_a_tool_is_malformed_and_not_a_blank_response(tmp_path):
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
    row = {"q": "Rain?", "one": [call], "two": [assistant("No.")], "won": "a"}
    path = write(tmp_path / "a.jsonl", [row])
    text = "prompt=q,response_a=one,response_b=two,choice=won"
    with pytest.raises(MalformedDataError, match=r"a\.jsonl:1: message 1: tool_calls would be lo"):
        settled(path, text)
    # Nor does it end the search for a layout that might fit.
    write(path, [{"instruction": [call], "output_1": "one", "output_2": "two", "preference": 1}])
    with pytest.raises(MalformedDataError, match="columns of no known format"):
        open_source(path)


def converted(path, text):
    """The rows of a file as votes."""
    out = path.with_name("votes.jsonl")
    assert main(["convert", str(path), str(out), "--to", "votes", "--map", text]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("named", ["ana", ["ana"]])
def test_the_column_of_workers_names_who_chose(tmp_path, named):
    row = {"q": "p", "one": "x", "two": "y", "who": named, "won": 2}
    text = "prompt=q,response_a=one,response_b=two,choice=won:1|2|0"
    for path in (write(tmp_path / "x.jsonl", [row]), tmp_path / "x.csv"):
        if path.suffix == ".csv":
            cell = named if isinstance(named, str) else '"[""ana""]"'
            path.write_text(f"q,one,two,who,won\np,x,y,{cell},2\n")
        (found,) = converted(path, f"{text},workers=who")
        assert (found["votes"], found["workers"]) == (["b"], ["ana"])
        assert converted(path, text)[0]["workers"] == ["import"]
    path = write(tmp_path / "x.jsonl", [{**row, "who": ["ana", "bo"]}])
    with pytest.raises(MalformedDataError, match=":1: found 1 votes and 2 workers"):
        settled(path, f"{text},workers=who")


def test_lists_in_cells_are_read_where_a_map_expects_lists(tmp_path):
    """As pandas writes them with `json.dumps`; texts that look like lists stay texts."""
    path = tmp_path / "x.csv"
    path.write_text('q,one,two,given,who\np,[1],y,"[""b"", ""a""]","[""ana"", 7]"\n')
    (found,) = converted(path, "prompt=q,response_a=one,response_b=two,votes=given,workers=who")
    assert (found["votes"], found["workers"]) == (["b", "a"], ["ana", "7"])
    assert found["response_a"] == "[1]"
    path.write_text('q,texts,worth\np,"[""x"", ""y""]","[1, 3]"\n')
    assert settled(path, "prompt=q,responses=texts,scores=worth") == [("p", "y", "x", 2.0, 1.0)]
