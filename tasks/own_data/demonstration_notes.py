"""What the user should know of demonstrations that can all be read."""

from collections.abc import Iterator, Sequence, Set
from typing import Any

from preferences.demonstrations import prompts_of
from preferences.records import Row
from tasks.own_data.rows import question

MAX_NAMED = 10
"""Rows that a note names."""


def demonstration_notes(key: str, rows: Sequence[Row], evaluation: Set[str]) -> Iterator[str]:
    """Demonstrations that make a comparison unfair, or teach to say nothing.

    Args:
        key: of params.yaml, under which the rows are named.
        rows: in one of the pipeline's two forms.
        evaluation: what the evaluation prompts ask, as `question` has it.
    """

    def asks(row: Row) -> bool:
        return any(question(prompt) in evaluation for prompt in prompts_of(row))

    if shared := _numbers(asks(row) for row in rows):
        yield (
            f"{key}: {len(shared)} of {len(rows)} demonstrations answer prompts that policies are "
            "evaluated on, so SFT has seen them; remove those for a fair comparison "
            f"({_named(shared)})"
        )
    if silent := _numbers(any(not text.strip() for text in _responses(row)) for row in rows):
        yield (
            f"{key}: {len(silent)} of {len(rows)} demonstrations have an empty response, so SFT "
            f"learns to say nothing; remove those unless that is meant ({_named(silent)})"
        )


def _responses(row: Row) -> list[str]:
    messages: list[dict[str, Any]] | None = row.get("messages")
    if messages is None:
        return [row["response"]]
    return [turn["content"] for turn in messages if turn["role"] == "assistant"]


def _numbers(found: Iterator[bool]) -> list[int]:
    return [number for number, one in enumerate(found, start=1) if one]


def _named(numbers: Sequence[int]) -> str:
    first = ", ".join(map(str, numbers[:MAX_NAMED]))
    return f"rows {first}{', ...' if len(numbers) > MAX_NAMED else ''}"
