"""Text to token ids and back: prompts by the chat template, finished responses with their end."""

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.templates import Message, render

Prompt = str | Sequence[Message]


class TokenizerError(ValueError):
    """The tokenizer cannot be used; the message says why."""


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, *, source: str) -> None:
    """Refuse a tokenizer whose end of a response cannot be distinguished from padding.

    Raises:
        TokenizerError: no end token, no pad token, or one id for both.
    """
    if tokenizer.eos_token_id is None:
        raise TokenizerError(f"{source}: the tokenizer has no end-of-sequence token (eos_token)")
    if tokenizer.pad_token_id is None:
        raise TokenizerError(f"{source}: the tokenizer has no pad token; add one that is not eos")
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise TokenizerError(
            f"{source}: pad and end-of-sequence are the same token "
            f"({tokenizer.eos_token!r}, id {tokenizer.eos_token_id}); "
            "give the tokenizer a pad token of its own"
        )


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, ready for the response to follow.

    A tokenizer with a chat template gets the prompt as messages with the generation prompt
    appended; one without takes plain text and puts its first tokens (`<s>`) before it, once. A
    template writes those itself.

    Raises:
        TokenizerError: messages, and no chat template.
        TemplateError: the template fails, or takes more memory, time or text than it may.
    """
    if tokenizer.chat_template is None:
        if not isinstance(prompt, str):
            raise TokenizerError("a prompt of messages needs a tokenizer with a chat template")
        ids = list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        first = _first_ids(tokenizer)
        return ids if ids[: len(first)] == first else [*first, *ids]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    text = render(tokenizer, messages)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _first_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before every text, and not what it puts behind."""
    whole = list(tokenizer("a")["input_ids"])
    text = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    starts = range(len(whole) - len(text) + 1)
    return whole[: next(n for n in starts if whole[n : n + len(text)] == text)]


def encode_response(
    tokenizer: PreTrainedTokenizerBase, response: str, *, finished: bool
) -> list[int]:
    """Token ids of a response; a finished one has the end token, one that was cut has none.

    The end token is trained and scored like any other.
    """
    ids = list(tokenizer(response, add_special_tokens=False)["input_ids"])
    return [*ids, tokenizer.eos_token_id] if finished else ids


def decode_response(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The response's text without special tokens."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def decode_rows(tokenizer: PreTrainedTokenizerBase, ids: Tensor, mask: Tensor) -> list[str]:
    """The text of each row's real tokens without special tokens; ids and mask are (batch, any)."""
    rows = zip(ids.cpu(), mask.cpu(), strict=True)
    return [decode_response(tokenizer, row[kept].tolist()) for row, kept in rows]
