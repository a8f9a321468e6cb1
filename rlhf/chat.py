"""Text to token ids and back: prompts by the chat template, finished responses with their end."""

import functools
from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.templates import Message, TemplateError, render

Prompt = str | Sequence[Message]

_SAID = "3f79bb7b"
"""What is said where only the text around it is of interest; in no template."""


_IDS: dict[int, int] = {}
"""Every id that was met."""


class TokenizerError(ValueError):
    """The tokenizer cannot be used; the message says why."""


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, *, source: str) -> None:
    """Refuse a tokenizer with which no response can end.

    Raises:
        TokenizerError: it has no end token, and no chat template that could write one.
    """
    if tokenizer.eos_token_id is None and tokenizer.chat_template is None:
        raise TokenizerError(
            f"{source}: the tokenizer has no end-of-sequence token (eos_token), "
            "and no chat template that writes one"
        )


def end_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a response: what the chat template writes behind an assistant's turn.

    A chat model ends its turns with it, and past turns in its prompts end with it, whatever the
    tokenizer calls `eos_token` (Gemma: `<eos>`, but turns end with `<end_of_turn>`). Where the
    template writes no special token there, or there is no template, it is `eos_token`.

    Raises:
        TokenizerError: there is neither.
    """
    return _end_id(tokenizer, str(tokenizer.chat_template), tokenizer.eos_token_id)


@functools.lru_cache(maxsize=4)
def _end_id(tokenizer: PreTrainedTokenizerBase, _template: str, eos: int | None) -> int:
    special = {token for token, kind in tokenizer.added_tokens_decoder.items() if kind.special}
    no_end = {tokenizer.unk_token_id, tokenizer.bos_token_id} - {eos}
    ends = ({*special, *tokenizer.all_special_ids}) - no_end
    behind = tokenizer(_behind_a_turn(tokenizer), add_special_tokens=False)["input_ids"]
    end = next((token for token in behind if token in ends), eos)
    if end is None:
        raise TokenizerError(
            "the tokenizer has no end-of-sequence token (eos_token), and its chat template writes "
            "no special token behind an assistant's turn"
        )
    return end


def _behind_a_turn(tokenizer: PreTrainedTokenizerBase) -> str:
    """What the chat template writes behind what an assistant says; nothing where it cannot."""
    if tokenizer.chat_template is None:
        return ""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _SAID}]
    try:
        return render(tokenizer, turns, for_response=False).partition(_SAID)[2]
    except TemplateError:
        return ""


def check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a chat template that does not write what a user says: all prompts would be the same.

    A misspelt `{{ m['contents'] }}` writes nothing, and so do templates for content in parts.

    Raises:
        TokenizerError: it writes something else.
        TemplateError: it fails.
    """
    if tokenizer.chat_template is None:
        return
    text = render(tokenizer, [{"role": "user", "content": _SAID}])
    if _SAID not in text.casefold():
        raise TokenizerError(
            f"its chat template leaves out what a user says: for any message it writes {text!r}; "
            "expected the text of message['content'] in it"
        )


def unwritten_roles(tokenizer: PreTrainedTokenizerBase, roles: Sequence[str]) -> list[str]:
    """The roles of which the chat template leaves out what they say, in such a conversation.

    Raises:
        TemplateError: the template fails.
    """
    turns = [{"role": role, "content": f"{_SAID}-{at}."} for at, role in enumerate(roles)]
    text = render(tokenizer, turns).casefold()
    return list(dict.fromkeys(turn["role"] for turn in turns if turn["content"] not in text))


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
        ids = _plain_ids(tokenizer, prompt)
        first = _first_ids(tokenizer)
        return ids if ids[: len(first)] == first else [*first, *ids]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return _plain_ids(tokenizer, render(tokenizer, messages))


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

    The end token (`end_id`) is trained and scored like any other.
    """
    ids = _plain_ids(tokenizer, response)
    if lead := _lead(tokenizer, str(tokenizer.chat_template)):
        before, together = _plain_ids(tokenizer, lead), _plain_ids(tokenizer, lead + response)
        # Not where its beginning becomes one token with the text before it.
        if together[: len(before)] == before:
            ids = together[len(before) :]
    return [*ids, end_id(tokenizer)] if finished else ids


@functools.lru_cache(maxsize=4)
def _lead(tokenizer: PreTrainedTokenizerBase, _template: str) -> str:
    """Text behind which a response has the tokens that it has in a conversation; mostly none.

    SentencePiece puts a blank before the first word of a text. Where a template ends in text for
    the response to follow (`<|assistant|>`, new line), the response is no such beginning.
    """
    if tokenizer.chat_template is None:
        return ""
    asked = [{"role": "user", "content": "a"}]
    answered = [*asked, {"role": "assistant", "content": _SAID}]
    try:
        before, whole = render(tokenizer, asked), render(tokenizer, answered, for_response=False)
    except TemplateError:
        return ""
    if not whole.startswith(before + _SAID):
        return ""  # It writes a blank of its own, or the turn in another way.
    of_before, alone = _plain_ids(tokenizer, before), _plain_ids(tokenizer, _SAID)
    together = _plain_ids(tokenizer, before + _SAID)
    if together == of_before + alone or together[: len(of_before)] != of_before:
        return ""
    return before


def _plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return shared_ids(tokenizer(text, add_special_tokens=False)["input_ids"])


def shared_ids(ids: Sequence[int]) -> list[int]:
    """The same ids, equal ones being one object: a list of them has 8 bytes each and not 40.

    Demonstrations and pairs are kept as ids, a hundred million of them where there are 200,000.
    """
    return list(map(_IDS.setdefault, ids, ids))


def decode_response(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The response's text without special tokens, every blank of it kept.

    Of tokenizers that are no BPE some would take those before punctuation away, as in French.
    """
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def decode_rows(tokenizer: PreTrainedTokenizerBase, ids: Tensor, mask: Tensor) -> list[str]:
    """The text of each row's real tokens without special tokens; ids and mask are (batch, any)."""
    rows = zip(ids.cpu(), mask.cpu(), strict=True)
    return [decode_response(tokenizer, row[kept].tolist()) for row, kept in rows]
