"""Conversations in the spellings that people have, as messages with `role` and `content`."""

from typing import Any

from preferences.row_values import RowError
from preferences.schemas import shown

_SPEAKERS = ("role", "from", "speaker")
_WORDS = ("content", "value", "text")
_ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
}
_CALLS = ("tool_calls", "function_call")
"""What an assistant says beside its words; messages with `role` and `content` cannot hold it."""
Messages = list[dict[str, str]]


def as_messages(value: Any) -> Any:
    """A list of turns as messages, without their other keys; anything else unchanged.

    Raises:
        RowError: a turn calls a tool, which would be lost: an assistant would say nothing.
    """
    if not (isinstance(value, list) and value and all(isinstance(turn, dict) for turn in value)):
        return value
    for number, turn in enumerate(value, start=1):
        for name in _CALLS:
            if isinstance(turn.get(name), list | dict) and turn[name]:
                raise RowError(
                    f"message {number}: {name} would be lost; write the call into the content"
                )
    turns = [_turn(turn) for turn in value]
    return value if any(turn is None for turn in turns) else turns


def is_turn(item: Any) -> bool:
    """Whether this looks like a turn in any spelling, right or wrong."""
    if not isinstance(item, dict):
        return False
    return "role" in item or not (
        item.keys().isdisjoint(_SPEAKERS) or item.keys().isdisjoint(_WORDS)
    )


def _turn(turn: dict[str, Any]) -> dict[str, str] | None:
    speaker = next((turn[name] for name in _SPEAKERS if isinstance(turn.get(name), str)), None)
    words = next((turn[name] for name in _WORDS if isinstance(turn.get(name), str)), None)
    if speaker is None or words is None:
        return None
    return {"role": _ROLES.get(speaker.lower(), speaker.lower()), "content": words}


def answer_of(value: Any) -> Any:
    """The text of a response that is a single assistant message; anything else unchanged.

    Raises:
        RowError: it is another conversation.
    """
    if not isinstance(value, list):
        return value
    turns = as_messages(value)
    if len(turns) != 1 or not isinstance(turns[0], dict) or turns[0].get("role") != "assistant":
        raise RowError(f"expected a single assistant message as response, got {len(turns)} turns")
    return turns[0]["content"]


def without_opening(conversation: Any, prompt: Any) -> Any:
    """What a conversation adds to its prompt."""
    if not isinstance(conversation, list):
        return conversation
    opening = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    if conversation[: len(opening)] == opening:
        return conversation[len(opening) :]
    return conversation


def in_common(one: Any, other: Any) -> tuple[Messages, tuple[Messages, Messages]]:
    """The prompt that two conversations begin with, and the message that ends each.

    Raises:
        RowError: they differ before the last message.
    """
    for value in (one, other):
        if not isinstance(value, list) or len(value) < 2:
            raise RowError(
                f"expected conversations, since the map has no prompt, got {shown(value)}"
            )
    if one[:-1] != other[:-1]:
        raise RowError("the two conversations differ before the last message")
    return one[:-1], (one[-1:], other[-1:])
