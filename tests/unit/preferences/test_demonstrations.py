"""Demonstrations in the forms that people have, and prompts without ids."""

import hashlib
import json

import pytest

from preferences.demonstrations import prompts_of, read_demonstrations, read_prompts, text_of
from preferences.reader import MalformedDataError

USER, REPLY = {"role": "user", "content": "Kim?"}, {"role": "assistant", "content": "Sam."}
CALL = {"role": "assistant", "content": ""}
SYSTEM, LAST = {"role": "system", "content": "Be kind."}, {"role": "assistant", "content": "Yes."}


def id_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compact(messages) -> str:
    return json.dumps(messages, separators=(",", ":"))


@pytest.fixture
def read(tmp_path):
    def of(*rows, reader=read_demonstrations):
        path = tmp_path / "mine.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return reader(path)

    return of


SHORT = {"prompt_id": id_of("Kim?"), "prompt": "Kim?", "response": "Sam."}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Kim?", "response": "Sam."}, SHORT),
        ({"prompt": "Kim?", "response": "Sam.", "prompt_id": None}, SHORT),
        ({"prompt": "Kim?", "response": "Sam.", "prompt_id": "p"}, {**SHORT, "prompt_id": "p"}),
        ({"prompt": "Kim?", "completion": "Sam.", "source": "x"}, SHORT),
        (
            {"prompt": [SYSTEM, USER], "completion": [REPLY]},
            {"prompt_id": id_of(compact([SYSTEM, USER])), "prompt": [SYSTEM, USER],
             "response": "Sam."},
        ),
        ({"messages": [USER, REPLY]}, SHORT),
        # As in no_robots: the first question stands beside its conversation.
        ({"prompt": "Kim?", "prompt_id": "p", "messages": [USER, REPLY], "category": "c"},
         {**SHORT, "prompt_id": "p"}),
        ({"messages": [USER, REPLY, USER]}, SHORT),
        ({"messages": [{"from": "human", "value": "Kim?"}, {"from": "gpt", "value": "Sam."}]},
         SHORT),
        # As in ShareGPT.
        ({"id": "1", "conversations": [{"from": "human", "value": "Kim?"},
                                       {"from": "gpt", "value": "Sam."}]}, SHORT),
        ({"messages": [{**USER, "name": None}, {**REPLY, "tool_calls": None}]}, SHORT),
        ({"messages": [{**USER, "tool_calls": []}, {**REPLY, "weight": 1}]}, SHORT),
        (
            {"messages": [SYSTEM, USER, REPLY]},
            {"prompt_id": id_of(compact([SYSTEM, USER])), "prompt": [SYSTEM, USER],
             "response": "Sam."},
        ),
        (
            {"messages": [USER, REPLY, USER, LAST, USER]},
            {"prompt_id": id_of(compact([USER, REPLY, USER])),
             "messages": [USER, REPLY, USER, LAST]},
        ),
    ],
)  # fmt: skip
def test_every_form_becomes_one_of_two_which_stay_as_they_are(read, row, expected):
    assert read(row) == [expected]
    assert read(expected) == [expected]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "Kim?"}, 'field "response": missing'),
        ({"prompt": "Kim?", "response": "Sam.", "promt_id": "p"}, 'field "promt_id": unknown'),
        ({"completion": "Sam."}, 'field "prompt": missing'),
        ({"prompt": "Kim?", "completion": [REPLY, USER, LAST]},
         'field "completion": expected a single assistant message as response, got 3 turns'),
        ({"messages": [USER]}, "got no assistant's turn"),
        ({"messages": [REPLY, USER, LAST]}, "got one that opens the conversation"),
        ({"messages": "Kim?"}, 'field "messages": expected'),
        ({"messages": [{"role": "user"}, REPLY]}, 'field "messages": message 1: expected'),
        ({"messages": [USER, {"role": "narrator", "content": "x"}]}, 'role is "narrator"'),
        ({"prompt": "Kim?", "response": "Sam.", "prompt_id": " "}, 'field "prompt_id"'),
        # An assistant that calls a tool would else be one that says nothing.
        ({"messages": [USER, {**CALL, "tool_calls": [{"type": "function"}]}, REPLY]},
         "message 2: tool_calls would be lost"),
        ({"prompt": "Kim?", "completion": [{**CALL, "function_call": {"name": "f"}}]},
         "message 1: function_call would be lost"),
        ({"messages": [USER, {**REPLY, "weight": 0}, USER, {**LAST, "weight": 1}]},
         'field "messages": message 2: weight is 0'),
    ],
)  # fmt: skip
def test_a_row_that_is_no_demonstration_is_named_with_its_line(read, row, problem):
    with pytest.raises(MalformedDataError) as caught:
        read({"prompt": "Kim?", "response": "Sam."}, row)
    assert problem in str(caught.value)
    assert "mine.jsonl:2: " in str(caught.value)


def test_a_conversation_answers_a_prompt_at_each_turn_of_the_assistant(read):
    (row,) = read({"messages": [USER, REPLY, USER, LAST]})
    assert list(prompts_of(row)) == [[USER], [USER, REPLY, USER]]
    assert text_of(row) == "Kim? Sam. Kim? Yes."
    assert list(prompts_of(SHORT)) == ["Kim?"]
    assert text_of(SHORT) == "Kim? Sam."
    assert text_of({**SHORT, "prompt": [SYSTEM, USER]}) == "Be kind. Kim? Sam."


def test_a_prompt_without_an_id_gets_that_of_its_content(read):
    rows = [{"prompt": "Kim?"}, {"prompt": [SYSTEM, USER], "prompt_id": None}, {"prompt": "a",
            "prompt_id": "p"}]  # fmt: skip
    assert [row["prompt_id"] for row in read(*rows, reader=read_prompts)] == [
        id_of("Kim?"),
        id_of(compact([SYSTEM, USER])),
        "p",
    ]
    with pytest.raises(MalformedDataError, match='field "promt": unknown'):
        read({"prompt": "a", "promt": "b"}, reader=read_prompts)


@pytest.mark.parametrize("blank", ["", " \n"])
@pytest.mark.parametrize(
    ("reader", "row", "field"),
    [
        (read_prompts, {}, "prompt"),
        (read_demonstrations, {"response": "Sam."}, "prompt"),
        (read_demonstrations, {"completion": "Sam."}, "prompt"),
    ],
)
def test_a_prompt_that_asks_nothing_is_refused(read, reader, row, field, blank):
    with pytest.raises(MalformedDataError, match=rf'^.*mine.jsonl:1: field "{field}": expected'):
        read({**row, field: blank}, reader=reader)


def test_a_conversation_that_opens_with_nothing_is_refused(read):
    with pytest.raises(MalformedDataError, match='field "messages": expected a question, got " "'):
        read({"messages": [{**USER, "content": " "}, REPLY]})
