"""Conversations of several turns as token ids, and which of them an assistant wrote.

A conversation is tokenised once, as the chat template writes it. An assistant's turn is what
follows the place where the template lets a response begin, up to and with the end token: what the
model is to write there, and nothing that the template adds. That is only so where a template
writes the beginning of a conversation in the same way whether or not it goes on, which is checked.
"""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from rlhf.chat import TokenizerError, end_id, shared_ids
from rlhf.templates import Message, render


class EncodedConversation(NamedTuple):
    """Token ids up to the end of the last assistant's turn."""

    ids: list[int]
    by_assistant: list[bool]
    """Whether a token begins in an assistant's turn, end token included."""


class _Turn(NamedTuple):
    """An assistant's turn within a conversation."""

    number: int
    """Of the message, from 1."""
    before: str
    """The text up to where it begins."""
    upto: str
    """The text up to its end token, which is the last of it."""


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> EncodedConversation:
    """Token ids of a conversation; what follows the last assistant's turn is left out.

    Raises:
        TokenizerError: no chat template, or one that writes a turn in another way when the
            conversation goes on, or that does not end it; or a tokenizer that cannot say where its
            tokens begin.
        TemplateError: the template fails, or takes more memory, time or text than it may.
    """
    if tokenizer.chat_template is None:
        raise TokenizerError("a conversation needs a tokenizer with a chat template")
    if not tokenizer.is_fast:
        raise TokenizerError("a conversation needs a fast tokenizer (tokenizer.json)")
    turns = [
        _turn(tokenizer, messages[: number + 1])
        for number, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    if not turns:
        raise TokenizerError("the conversation has no assistant's turn")
    whole = turns[-1].upto
    for turn in turns:
        if not whole.startswith(turn.upto):
            raise TokenizerError(
                f"the chat template writes message {turn.number} of a conversation in another way "
                f"when the conversation goes on ({_difference(turn.upto, whole)}), so it cannot be "
                "trained together with later turns; give each turn as a prompt with its response"
            )
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    spans = [(len(turn.before), len(turn.upto)) for turn in turns]
    return EncodedConversation(
        shared_ids(encoded["input_ids"]),
        [
            any(first <= start < last for first, last in spans)
            for start, _ in encoded["offset_mapping"]
        ],
    )


def _turn(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> _Turn:
    """The last message's turn."""
    number = len(messages)
    before = render(tokenizer, messages[:-1])
    text = render(tokenizer, messages, for_response=False)
    if not text.startswith(before):
        raise TokenizerError(
            f"the chat template does not write message {number} of a conversation behind the "
            f"prompt for it ({_difference(before, text)}); give each turn as a prompt with its "
            "response"
        )
    end = str(tokenizer.convert_ids_to_tokens(end_id(tokenizer)))
    said, found, _ = text[len(before) :].partition(end)
    if not found:
        raise TokenizerError(
            f"the chat template writes no {end} behind message {number} of a conversation, so the "
            "end of a response cannot be learnt from it"
        )
    return _Turn(number, before, before + said + found)


def _difference(expected: str, found: str) -> str:
    """Where a text does not begin with the expected one."""
    same = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    return f"expected {expected[same : same + 40]!r}, found {found[same : same + 40]!r}"
