"""What the columns of a JSON Lines file must contain, declared once and checked row by row."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from preferences.records import CHOICES

Kind = Literal["text", "prompt", "integer", "number", "truth", "object", "list", "any"]

_EXPECTED: dict[Kind, str] = {
    "text": "text",
    "prompt": "text or messages",
    "integer": "an integer",
    "number": "a number",
    "truth": "true or false",
    "object": "an object",
    "list": "a list",
    "any": "a value",
}
ROLES = ("system", "user", "assistant", "tool")
MAX_INTEGER = 2**53
"""Largest integer in a column of numbers; 64-bit floats cannot represent all larger ones."""
MOST_KEYS = 4
"""Of a message that is none; an error shows no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column."""

    name: str
    kind: Kind = "text"
    required: bool = True
    nullable: bool = False
    filled: bool = False
    """Refuse an empty or blank text."""
    choices: tuple[str, ...] = ()
    """The allowed texts; empty: any text."""
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, slots=True)
class Schema:
    """All columns of one kind of file."""

    name: str
    fields: tuple[Field, ...]
    unknown: Literal["refuse", "leave out"] = "refuse"
    """What happens to other columns; third-party data often have more than needed."""

    def problems(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Everything wrong with one row, each as `field "x": expected ..., got ...`."""
        for field in self.fields:
            if field.name in row:
                for problem in _problems(field, row[field.name]):
                    yield f'field "{field.name}": {problem}'
            elif field.required:
                yield f'field "{field.name}": missing'
        if self.unknown == "refuse":
            names = ", ".join(field.name for field in self.fields)
            for name in self.others(row):
                yield f"field {shown(name)}: unknown; {self.name} have {names}"

    def without_null_keys(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row without keys of its messages whose value is null, as `tool_calls` often is."""
        prompts = {field.name for field in self.fields if field.kind == "prompt"}
        return {
            name: [_without_nulls(message) for message in value]
            if name in prompts and isinstance(value, list)
            else value
            for name, value in row.items()
        }

    def others(self, row: Mapping[str, Any]) -> list[str]:
        """The columns of a row that the schema does not know."""
        names = {field.name for field in self.fields}
        return [name for name in row if name not in names]


def printable(text: str) -> str:
    """A text on one line, with escapes for all that could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def shown(value: object) -> str:
    """A value as shown in errors: null, true, a type's name, or a shortened text in quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        text = value if len(value) <= 40 else value[:40] + "…"
        # Escaped, so that no control character of the data reaches a terminal.
        return '"' + text.encode("unicode_escape").decode("ascii") + '"'
    if isinstance(value, int | float):
        return str(value)[:40]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return f"a value of type {type(value).__name__}"


def _problems(field: Field, value: object) -> Iterator[str]:
    if value is None and field.nullable:
        return
    if field.kind == "prompt" and not isinstance(value, str):
        yield from _message_problems(value)
    elif not _has_kind(field.kind, value):
        yield f"expected {_EXPECTED[field.kind]}, got {shown(value)}"
    elif isinstance(value, str):
        yield from _text_problems(field, value)
    elif isinstance(value, int | float) and not field.low <= value <= field.high:
        ends = (
            f"at least {field.low:g}"
            if field.high == math.inf
            else f"{field.low:g} to {field.high:g}"
        )
        yield f"expected {ends}, got {shown(value)}"
    elif field.kind == "number" and isinstance(value, int) and abs(value) > MAX_INTEGER:
        yield f"expected an integer up to {MAX_INTEGER:,}, got {shown(value)}"


def _has_kind(kind: Kind, value: object) -> bool:
    if isinstance(value, bool):
        return kind in ("truth", "any")
    if kind == "number":
        return isinstance(value, int | float)
    types = {
        "text": str,
        "prompt": str,
        "integer": int,
        "truth": bool,
        "object": dict,
        "list": list,
    }
    return kind == "any" or isinstance(value, types[kind])


def _text_problems(field: Field, value: str) -> Iterator[str]:
    if field.choices and value not in field.choices:
        yield f"expected one of {', '.join(field.choices)}, got {shown(value)}"
    if field.filled and not value.strip():
        yield f"expected text, got {shown(value)}"


def _without_nulls(message: object) -> object:
    if not isinstance(message, dict):
        return message
    needed = ("role", "content")
    return {key: value for key, value in message.items() if value is not None or key in needed}


def _message_problems(value: object) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"expected text or messages, got {shown(value)}"
        return
    if not value:
        yield "expected text or messages, got an empty list"
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            yield f'message {number}: expected {{"role", "content"}}, got {_with_keys(message)}'
        elif message["role"] not in ROLES:
            yield f"message {number}: role is {shown(message['role'])}, not {', '.join(ROLES)}"
        elif not isinstance(message["content"], str):
            yield f"message {number}: content: expected text, got {shown(message['content'])}"


def _with_keys(message: object) -> str:
    keys = list(message)[:MOST_KEYS] if isinstance(message, dict) else []
    return f"{shown(message)}{' with ' if keys else ''}{', '.join(map(shown, keys))}"


def _filled(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name=name, filled=True) for name in names)


def _optional(*names: str, kind: Kind = "text") -> tuple[Field, ...]:
    return tuple(Field(name=name, kind=kind, required=False, nullable=True) for name in names)


_PROMPT = Field(name="prompt", kind="prompt", filled=True)

PROMPTS = Schema("prompts", (*_filled("prompt_id"), _PROMPT))


def _finished(*names: str) -> tuple[Field, ...]:
    """Flags of responses; one that a file leaves out is true."""
    return tuple(Field(name=name, kind="truth", required=False) for name in names)


COMPARISONS = Schema(
    "comparisons",
    (
        *_filled("pair_id", "round", "prompt_id"),
        _PROMPT,
        Field(name="response_a"),
        Field(name="response_b"),
        *_finished("finished_a", "finished_b"),
        *_filled("policy_a", "policy_b"),
    ),
)

JUDGMENTS = Schema(
    "judgments",
    (
        *_filled("judgment_id", "pair_id", "round", "annotator_id", "kind"),
        Field(name="annotator_version"),
        Field(name="choice", choices=CHOICES),
        Field(name="strength", kind="integer", required=False, nullable=True, low=1, high=4),
        Field(name="shown_order", required=False, nullable=True, choices=("AB", "BA")),
        Field(name="revision", kind="integer", low=0),
        *_optional("answer_a", "created_at", "reason", "rationale", "error", "guideline_hash"),
        Field(name="p_a", kind="number", required=False, nullable=True, low=0, high=1),
        *_optional("latency_ms", kind="number"),
        *_optional("attempt", "seed", kind="integer"),
        *_optional("criteria", kind="object"),
    ),
)

PREFERENCES = Schema(
    "preferences",
    (
        *_filled("pair_id", "prompt_id"),
        _PROMPT,
        Field(name="chosen"),
        Field(name="rejected"),
        *_finished("chosen_finished", "rejected_finished"),
        Field(name="margin", kind="number", low=0),
        Field(name="weight", kind="number", low=0),
        Field(name="source"),
        Field(name="round"),
        Field(name="split", choices=("train", "heldout")),
        Field(name="label", kind="number", required=False, low=0.5, high=1),
        Field(name="annotator_version", required=False),
    ),
)

CORPUS = Schema("corpus", (Field(name="text", filled=True),))
