"""Chat templates: programs that come with a model, rendered in a child process with limits.

Jinja's sandbox keeps a template from Python and from long ranges, not from `{{ 'A' * 10**9 }}`, two
nested loops or `{{ 9**9**9 }}`, and no check of the finished text comes in time for those. The
kernel stops the child instead. The embedded template is our own and is rendered in place.
"""

import functools
import json
import multiprocessing
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

Message = Mapping[str, str]

EMBEDDED_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

WITHOUT_DATE = "{%- set strftime_now = todays_date %}\n"
"""Put before a template, so that `strftime_now`, with which transformers gives it today's date, is
as undefined as `todays_date` is: a prompt must not depend on the day. Templates like Llama 3.2's
then fall back on a fixed date of their own. The line leaves no trace in the text."""

MAX_CHARACTERS = 1_000_000
"""Longest text that a template may render for one prompt."""

MAX_BYTES = 256 * 2**20
"""Memory that rendering may take beyond what the process has."""

MAX_SECONDS = 2
"""Processor time for one prompt; real templates take less than a millisecond."""

PATIENCE_SECONDS = 600.0
"""For a child that does not reply and uses no processor time either."""


class TemplateError(ValueError):
    """A chat template that cannot render a prompt; the message says why."""


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, for_response: bool = True
) -> str:
    """The messages as the tokenizer's chat template writes them.

    Args:
        tokenizer: one with a chat template.
        messages: the conversation.
        for_response: go on to where the response begins ("generation prompt").

    Raises:
        TemplateError: it fails, or takes more than it may.
    """
    if tokenizer.chat_template == EMBEDDED_TEMPLATE:
        return _rendered(tokenizer, messages, for_response)
    try:
        child = _renderer(tokenizer, str(tokenizer.chat_template))
        return child.render(messages, for_response)
    except TemplateError:
        _renderer.cache_clear()  # Its child may have ended.
        raise


class _Renderer:
    """The child that renders with one tokenizer, and the pipe to it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        # Without a copy of our end, the child sees the pipe close when we die.
        self._child = context.Process(
            target=_serve, args=(tokenizer, theirs, self._pipe), daemon=True
        )
        self._child.start()
        theirs.close()

    def render(self, messages: Sequence[Message], for_response: bool) -> str:
        try:
            self._pipe.send_bytes(json.dumps([list(messages), for_response]).encode())
            if not self._pipe.poll(PATIENCE_SECONDS):
                self._child.kill()
            reply = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self._child.join()
            raise TemplateError(
                f"rendering the chat template was stopped after {MAX_SECONDS} s of processor time"
                if self._child.exitcode == -signal.SIGXCPU
                else f"rendering the chat template ended its process ({self._child.exitcode})"
            ) from None
        if "problem" in reply:
            raise TemplateError(reply["problem"])
        return str(reply["text"])


@functools.lru_cache(maxsize=1)
def _renderer(tokenizer: PreTrainedTokenizerBase, _template: str) -> _Renderer:
    return _Renderer(tokenizer)


def _serve(tokenizer: PreTrainedTokenizerBase, pipe: Connection, ours: Connection) -> None:
    """Render what comes through the pipe until it closes."""
    ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _limit(resource.RLIMIT_CORE, 0)
    if space := _address_space():
        _limit(resource.RLIMIT_AS, space + MAX_BYTES)
    with suppress(EOFError, OSError):
        while True:
            messages, for_response = json.loads(pipe.recv_bytes())
            # Counted in whole seconds from the child's start.
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + MAX_SECONDS)
            pipe.send_bytes(json.dumps(_reply(tokenizer, messages, for_response)).encode())


def _reply(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], for_response: bool
) -> dict[str, str]:
    try:
        text = _rendered(tokenizer, messages, for_response)
    except MemoryError:
        limit = f"{MAX_BYTES // 2**20} MB"
        return {"problem": f"rendering the chat template takes more than {limit} of memory"}
    except Exception as error:  # A template may raise anything.
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        # What a template says must not steer the terminal that shows it.
        reason = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in reason)
        if "'todays_date' is undefined" in reason:
            reason = (
                "it asks for today's date (strftime_now), and a prompt must not depend on the "
                "day; write a fixed date into the template"
            )
        return {"problem": f"the chat template cannot be rendered: {reason}"}
    if len(text) > MAX_CHARACTERS:
        return {
            "problem": f"the chat template makes {len(text)} characters of a prompt; at most "
            f"{MAX_CHARACTERS} are taken"
        }
    return {"text": text}


def _rendered(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], for_response: bool
) -> str:
    return str(
        tokenizer.apply_chat_template(
            list(messages),
            chat_template=WITHOUT_DATE + tokenizer.get_chat_template(),
            tokenize=False,
            add_generation_prompt=for_response,
        )
    )


def _limit(kind: int, value: int) -> None:
    """Set a limit, or keep a lower one that is already set."""
    hard: Any = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _address_space() -> int:
    """Bytes of this process's address space; 0 where it is not known (only Linux reports it)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()
