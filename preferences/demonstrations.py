"""Demonstrations as people have them, read into the two forms that the pipeline writes.

    {"prompt_id", "prompt", "response"}     a response
    {"prompt_id", "messages"}               a conversation, in which an assistant speaks repeatedly

Read are these, `prompt` with `completion` (text or messages), and `messages` of any number of
turns (ShareGPT's `conversations`, too); one without a `prompt_id` gets that of its content.
`messages` goes before the rest, as in data sets that have a conversation and its first question
side by side. Rows of several forms may stand in one file; in a table they leave columns empty.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from preferences.formats.turns import answer_of, as_messages
from preferences.reader import NumberedRow, Problems, stream_objects
from preferences.records import Prompt, Row, prompt_text, text_hash
from preferences.row_values import RowError
from preferences.schemas import Field, Schema, shown

Objects = Callable[[Path, Problems], Iterator[NumberedRow]]
"""Reads the rows of data with any columns and records what is damaged."""

_ID = Field(name="prompt_id", filled=True, required=False, nullable=True)
_PROMPT = Field(name="prompt", kind="prompt", filled=True)

OWN_PROMPTS = Schema("prompts", (_ID, _PROMPT))

_RESPONSES = Schema("demonstrations", (_ID, _PROMPT, Field(name="response")))
_COMPLETIONS = Schema(
    "demonstrations", (_ID, _PROMPT, Field(name="completion")), unknown="leave out"
)
_CONVERSATIONS = Schema(
    "demonstrations", (_ID, Field(name="messages", kind="prompt")), unknown="leave out"
)

_SAID, _TALKS = ("prompt", "response", "completion"), ("messages", "conversations")


def read_demonstrations(
    path: Path, objects: Objects = stream_objects, unread: set[str] | None = None
) -> list[Row]:
    """The demonstrations of a file, by default JSON Lines, each in one of the two forms.

    The columns that are not read, such as a `system` beside a conversation, are added to `unread`.

    Raises:
        MalformedDataError: the file is missing, damaged, or any row is not a demonstration.
    """
    problems, rows = Problems(), []
    for numbered in objects(path, problems):
        try:
            schema, row = _in_our_words(numbered.row)
            wrong = list(schema.problems(row))
            if not wrong:
                rows.append(_demonstration(row))
                if unread is not None:
                    unread.update(set(schema.others(row)) - {*_SAID, *_TALKS})
        except RowError as error:
            wrong = [str(error)]
        for problem in wrong:
            problems.add_row(numbered.where, problem)
    problems.check()
    return rows


def read_prompts(path: Path, objects: Objects = stream_objects) -> list[Row]:
    """The prompts of a file, by default JSON Lines, each with an id.

    Raises:
        MalformedDataError: the file is missing, damaged, or any row is not a prompt.
    """
    problems, rows = Problems(), []
    for numbered in objects(path, problems):
        wrong = list(OWN_PROMPTS.problems(numbered.row))
        for problem in wrong:
            problems.add_row(numbered.where, problem)
        if not wrong:
            rows.append(_identified(numbered.row, numbered.row["prompt"]))
    problems.check()
    return rows


def prompts_of(demonstration: Row) -> Iterator[Prompt]:
    """What a demonstration answers: its prompt, or a conversation up to each of its responses."""
    if "prompt" in demonstration:
        yield demonstration["prompt"]
        return
    messages = demonstration["messages"]
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            yield messages[:number]


def text_of(demonstration: Row) -> str:
    """All that is said in a demonstration."""
    said = demonstration.get("messages") or demonstration["prompt"]
    text = said if isinstance(said, str) else " ".join(message["content"] for message in said)
    return f"{text} {demonstration['response']}" if "response" in demonstration else text


def _in_our_words(row: Row) -> tuple[Schema, Row]:
    """The schema for a row, and the row with turns spelt as ours and a completion as text."""
    row = _of_one_form(row)
    if "messages" not in row and "prompt" not in row and "conversations" in row:
        row = {**row, "messages": row["conversations"]}
    if row.get("messages") is not None:
        _require_all_trained(row["messages"])
        return _CONVERSATIONS, {**row, "messages": as_messages(row["messages"])}
    if "completion" in row and "response" not in row:
        try:
            completion = answer_of(row["completion"])
        except RowError as error:
            raise RowError(f'field "completion": {error}') from None
        prompt: dict[str, Any] = {"prompt": as_messages(row["prompt"])} if "prompt" in row else {}
        return _COMPLETIONS, {**row, **prompt, "completion": completion}
    return _RESPONSES, row


def _require_all_trained(turns: Any) -> None:
    """Refuses turns with weight 0, as OpenAI marks those not to learn: all would be trained."""
    for number, turn in enumerate(turns if isinstance(turns, list) else (), start=1):
        if isinstance(turn, dict) and turn.get("weight") == 0:
            raise RowError(
                f'field "messages": message {number}: weight is 0, but each turn of the assistant '
                "is trained; give the last one as completion, and those before it as prompt"
            )


def _of_one_form(row: Row) -> Row:
    """The row without what it leaves empty: a table has the columns of all forms in each row."""
    asks, talks = bool(row.get("prompt")), any(row.get(name) for name in _TALKS)
    of_other_form = dict.fromkeys(_SAID, talks) | dict.fromkeys(_TALKS, asks)
    empty = {
        name
        for name, other in of_other_form.items()
        if row.get(name) is None or (other and row[name] == "")
    }
    return {name: value for name, value in row.items() if name not in empty}


def _demonstration(row: Row) -> Row:
    if "messages" not in row:
        response = row["response"] if "response" in row else row["completion"]
        return {**_identified(row, row["prompt"]), "response": response}
    messages = row["messages"]
    if isinstance(messages, str):
        raise RowError(f'field "messages": expected messages, got {shown(messages)}')
    spoken = [number for number, turn in enumerate(messages) if turn["role"] == "assistant"]
    if not spoken or spoken[0] == 0:
        found = "no assistant's turn" if not spoken else "one that opens the conversation"
        raise RowError(
            f'field "messages": expected an assistant\'s turn behind others, got {found}'
        )
    before = messages[: spoken[-1]]
    if len(spoken) > 1:
        identity = _identified(row, before)["prompt_id"]
        return {"prompt_id": identity, "messages": messages[: spoken[-1] + 1]}
    alone = len(before) == 1 and before[0]["role"] == "user"
    prompt = before[0]["content"] if alone else before
    if isinstance(prompt, str) and not prompt.strip():
        raise RowError(f'field "messages": expected a question, got {shown(prompt)}')
    return {**_identified(row, prompt), "response": messages[spoken[0]]["content"]}


def _identified(row: Row, prompt: Prompt) -> Row:
    """A prompt with the row's id, or with the one that pairs with this prompt get."""
    identity = row.get("prompt_id") or text_hash(prompt_text(prompt))
    return {"prompt_id": identity, "prompt": prompt}
