"""Own prompts and demonstrations in the kinds of files that preferences may have."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from preferences.reader import MalformedDataError
from preferences.schemas import CORPUS
from tasks.own_data.rows import own_demonstrations, own_prompts, own_rows, read_preferences

USER, REPLY = {"role": "user", "content": "Kim?"}, {"role": "assistant", "content": "Sam."}
SYSTEM = {"role": "system", "content": "Be kind."}
Rows = list[dict[str, Any]]


def in_json(folder: Path, rows: Rows) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps(rows, indent=2))
    return path


def in_lines(folder: Path, rows: Rows) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def in_packed_json(folder: Path, rows: Rows) -> Path:
    path = folder / "mine.json.gz"
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    return path


def in_csv(folder: Path, rows: Rows) -> Path:
    path = folder / "mine.csv"
    with path.open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)))
        table.writeheader()
        for row in rows:
            cells = {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()}
            table.writerow(cells)
    return path


def in_parquet(folder: Path, rows: Rows) -> Path:
    path = folder / "mine.parquet"
    Dataset.from_list(rows).to_parquet(path)
    return path


def in_a_folder(folder: Path, rows: Rows) -> Path:
    (folder / "mine").mkdir()
    in_json(folder / "mine", rows)
    (folder / "mine/README.md").write_text("Mine.")
    return folder / "mine"


def saved(folder: Path, rows: Rows) -> Path:
    Dataset.from_list(rows).save_to_disk(folder / "mine")
    return folder / "mine"


KINDS = (in_json, in_packed_json, in_csv, in_parquet, in_a_folder, saved)
Write = Callable[[Path, Rows], Path]


@pytest.mark.parametrize("write", KINDS)
def test_prompts_of_every_kind_are_read(tmp_path: Path, write: Write):
    path = write(tmp_path, [{"prompt": "Kim?"}, {"prompt": "42"}])
    assert [row["prompt"] for row in own_prompts(path)] == ["Kim?", "42"]


@pytest.mark.parametrize("write", KINDS)
@pytest.mark.parametrize(
    "rows",
    [
        [{"prompt": "Kim?", "response": "Sam."}],
        [{"prompt": "Kim?", "completion": "Sam.", "source": "x"}],
        [{"prompt_id": None, "messages": [USER, REPLY], "n": 1}],
    ],
)
def test_demonstrations_of_every_kind_are_read(tmp_path: Path, write: Write, rows: Rows):
    (found,) = own_demonstrations(write(tmp_path, rows))
    assert (found["prompt"], found["response"]) == ("Kim?", "Sam.")


@pytest.mark.parametrize("write", [*KINDS, in_lines])
@pytest.mark.parametrize("conversation", ["messages", "conversations"])
@pytest.mark.parametrize("reply", ["response", "completion"])
def test_rows_of_two_forms_may_stand_in_one_table(
    tmp_path: Path, write: Write, conversation: str, reply: str
):
    """As in JSON Lines; a table has the columns of both, and an empty cell for what a row lacks."""
    rows: Rows = [
        {conversation: [USER, REPLY], "prompt": None, reply: None},
        {conversation: None, "prompt": "Who?", reply: "Kim."},
    ]
    if write is in_csv:
        rows = [{k: v for k, v in row.items() if v is not None} for row in rows]
    found = own_demonstrations(write(tmp_path, rows))
    assert [(row["prompt"], row["response"]) for row in found] == [
        ("Kim?", "Sam."),
        ("Who?", "Kim."),
    ]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (in_csv, r'mine\.csv:3: field "messages": expected messages, got ""'),
        (in_parquet, r'mine\.parquet row 2: field "prompt": missing'),
        (in_lines, r'mine\.jsonl:2: field "prompt": missing'),
    ],
)
def test_a_row_of_neither_form_is_named(tmp_path: Path, write: Write, said: str):
    rows: Rows = [
        {"messages": [USER, REPLY], "prompt": None, "completion": None},
        {"messages": None, "prompt": None, "completion": "Sam."},
    ]
    if write is in_csv:
        rows = [{k: v for k, v in row.items() if v is not None} for row in rows]
    with pytest.raises(MalformedDataError, match=said):
        own_demonstrations(write(tmp_path, rows))


HUMAN, GPT = {"from": "human", "value": "Kim?"}, {"from": "gpt", "value": "Sam."}


@pytest.mark.parametrize("write", [in_csv, in_lines])
@pytest.mark.parametrize("conversation", ["messages", "conversations"])
@pytest.mark.parametrize("turns", [[HUMAN, GPT], [{"speaker": "user", "text": "Kim?"}, REPLY]])
def test_turns_in_the_spellings_of_others_are_read_from_a_cell_as_from_a_line(
    tmp_path: Path, write: Write, conversation: str, turns: Rows
):
    (found,) = own_demonstrations(write(tmp_path, [{conversation: turns, "n": "1"}]))
    assert (found["prompt"], found["response"]) == ("Kim?", "Sam.")


@pytest.mark.parametrize(("write", "where"), [(in_csv, "csv:2"), (in_lines, "jsonl:1")])
@pytest.mark.parametrize(
    ("read", "row", "said"),
    [
        (own_demonstrations, {"conversations": [HUMAN, {"from": "gpt", "value": 1}]},
         'field "messages": message 1: expected {"role", "content"}, '
         'got an object with "from", "value"'),
        (own_demonstrations, {"conversations": [HUMAN]},
         'field "messages": expected an assistant\'s turn behind others, got no assistant\'s turn'),
        (own_demonstrations, {"prompt": "Kim?", "completion": [HUMAN, GPT]},
         'field "completion": expected a single assistant message as response, got 2 turns'),
        (own_prompts, {"prompt": [HUMAN]},
         'field "prompt": message 1: expected {"role", "content"}, '
         'got an object with "from", "value"'),
    ],
)  # fmt: skip
def test_of_wrong_turns_a_cell_is_told_what_a_line_is(
    tmp_path: Path, write: Write, where: str, read: Callable[[Path], Rows], row: Any, said: str
):
    with pytest.raises(MalformedDataError) as error:
        read(write(tmp_path, [row]))
    assert str(error.value).splitlines()[0] == f"{tmp_path}/mine.{where}: {said}"


def test_a_cell_with_a_list_of_anything_else_is_text(tmp_path: Path):
    """A question about JSON, such as: what is wrong here?"""
    cells = ['[{"from": "Rome", "to": "Oslo"}]', "[1]", '[{"text": "Kim?"}]']
    path = in_csv(tmp_path, [{"prompt": cell} for cell in cells])
    assert [row["prompt"] for row in own_prompts(path)] == cells


@pytest.mark.parametrize("write", KINDS)
def test_messages_as_prompt_and_those_that_tables_give_empty_keys(tmp_path: Path, write: Write):
    asked = [SYSTEM, {**USER, "name": None}]
    assert own_prompts(write(tmp_path, [{"prompt": asked}]))[0]["prompt"] == [SYSTEM, USER]


@pytest.mark.parametrize("write", KINDS)
def test_documents_of_every_kind_are_read(tmp_path: Path, write: Write):
    assert own_rows(write(tmp_path, [{"text": "1"}]), CORPUS) == [{"text": "1"}]


def test_of_a_kind_that_is_not_known_all_that_are_known_are_named(tmp_path: Path):
    path = tmp_path / "prompts.txt"
    path.write_text("Kim?\n")
    with pytest.raises(MalformedDataError, match=r"prompts\.txt: unknown suffix, expected one of"):
        own_prompts(path)


def test_a_wrong_cell_is_named_with_its_line(tmp_path: Path):
    path = tmp_path / "mine.csv"
    path.write_text("prompt\nKim?\n \n")
    with pytest.raises(MalformedDataError, match=r'mine\.csv:3: field "prompt": expected text'):
        own_prompts(path)


def test_preferences_of_our_own_in_another_kind_of_file_belong_to_the_sources(tmp_path: Path):
    own = dict.fromkeys(("pair_id", "prompt_id", "prompt", "chosen", "rejected", "source"), "x")
    own |= {"margin": 1.0, "weight": 1.0, "round": "r1", "split": "train"}
    for write in (in_json, in_csv, in_parquet):
        path = write(tmp_path, [own])
        with pytest.raises(MalformedDataError) as error:
            read_preferences(path)
        (line,) = str(error.value).splitlines()
        assert line.startswith(f"{path}: found the format preferences, expected JSON Lines")
        assert f"sources: [{{path: {path}}}]" in line


def test_two_prompts_with_one_id_are_refused_and_one_prompt_twice_is_not(tmp_path: Path) -> None:
    """Such as a category in the place of an id."""
    twice = [{"prompt": "Kim?", "prompt_id": "p"}, {"prompt": " kim? ", "prompt_id": "p"}]
    assert len(own_prompts(in_lines(tmp_path, twice))) == 2
    path = in_lines(tmp_path, [*twice, {"prompt": "Sam?", "prompt_id": "p"}])
    words = rf"{path}:3: field \"prompt_id\": 'p' is that of another prompt, in {path}:1"
    with pytest.raises(MalformedDataError, match=words):
        own_prompts(path)
