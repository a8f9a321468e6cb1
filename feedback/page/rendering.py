"""Renders untrusted text as harmless HTML.

Three layers of defence: Markdown without HTML, links or images; an allow-list of tags, with no
attributes but the numbers of lists; and the page's Content-Security-Policy
(`feedback.page.security`). Before that, characters that hide or reorder text are made visible.
Entities stay as they are written, and no word is left out that Markdown would not show.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from preferences.records import Prompt

MARKDOWN_CHARACTERS = 16_384
"""Markdown is rendered up to this length, to bound the time; the rest is shown as plain text."""
SHOWN_CHARACTERS = 262_144
"""Text beyond this length is not shown, only its length."""

_TAGS = {"p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "em", "strong", "s", "blockquote"}
_TAGS |= {"ul", "ol", "li", "pre", "code", "table", "thead", "tbody", "tr", "th", "td"}
_INVISIBLE = re.compile(
    # Controls except tab and newline; zero-width space, word joiner, invisible operators, soft
    # hyphen, byte-order mark; direction marks, embeddings, overrides, isolates; tags; surrogates.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_MARKS_IN_A_ROW = 6
"""Combining marks per letter; no language needs more, and stacks of them cover other text."""

_markdown = (
    MarkdownIt("commonmark", {"html": False, "breaks": True})
    .enable(["table", "strikethrough"])
    .disable(["image", "link", "autolink", "reference", "html_block", "html_inline", "entity"])
)


def prompt_html(prompt: Prompt) -> str:
    """A prompt as HTML: one text, or messages headed by their roles."""
    if isinstance(prompt, str):
        return text_html(prompt)
    turns: Sequence[tuple[str, str]] = [
        (str(message.get("role", "?")), str(message.get("content", ""))) for message in prompt
    ]
    return "".join(
        f'<h3 class="role">{html.escape(visible(role))}</h3>{text_html(content)}'
        for role, content in turns
    )


@lru_cache(maxsize=512)
def text_html(text: str) -> str:
    """Safe HTML of a text that may be Markdown."""
    shown = text[:SHOWN_CHARACTERS]
    body = _safe_markdown(visible(shown[:MARKDOWN_CHARACTERS]))
    rest = shown[MARKDOWN_CHARACTERS:]
    if rest:
        plain = html.escape(visible(rest))
        body += (
            f"<details><summary>{len(rest):,} further characters, as plain text</summary>"
            f'<pre class="plain">{plain}</pre></details>'
        )
    left_out = len(text) - len(shown)
    if left_out:
        body += f"<p><em>{left_out:,} more characters are not shown.</em></p>"
    return body


def plain_prompt(prompt: Prompt) -> str:
    """A prompt as plain text; of messages, each below its role in brackets."""
    if isinstance(prompt, str):
        return plain_text(prompt)
    return "\n\n".join(
        f"[{visible(str(message.get('role', '?')))}]\n{plain_text(str(message.get('content', '')))}"
        for message in prompt
    )


@lru_cache(maxsize=512)
def plain_text(text: str) -> str:
    """The text itself, as far as it is shown, with hidden characters spelt out."""
    left_out = len(text) - SHOWN_CHARACTERS
    note = f"\n\n[{left_out:,} more characters are not shown.]" if left_out > 0 else ""
    return visible(text[:SHOWN_CHARACTERS]) + note


def visible(text: str) -> str:
    """The text with hidden and reordering characters spelt out, such as [U+202E]."""
    spelt = _INVISIBLE.sub(lambda found: f"[U+{ord(found[0]):04X}]", text.replace("\r\n", "\n"))
    return _limit_marks(spelt)


def _limit_marks(text: str) -> str:
    if text.isascii():
        return text
    kept: list[str] = []
    run = 0
    for character in text:
        run = run + 1 if _stacks(character) else 0
        if run <= _MARKS_IN_A_ROW:
            kept.append(character)
    return "".join(kept)


def _stacks(character: str) -> bool:
    """Whether it is drawn over, under or around the character before it.

    Tibetan writes consonants below each other, as many as a word has.
    """
    return unicodedata.category(character) in ("Mn", "Me") and not "\u0f8d" <= character <= "\u0fbc"


def _safe_markdown(text: str) -> str:
    tokens = _markdown.parse(text)
    if _words([text]) != _words(f"{token.info} {token.content}" for token in tokens):
        # Markdown drops the cells of a row beyond those of the table's head.
        return f'<pre class="plain">{html.escape(text)}</pre>'
    _number(tokens)
    return nh3.clean(
        _markdown.renderer.render(tokens, _markdown.options, {}),
        tags=_TAGS,
        attributes={"ol": {"start"}, "li": {"value"}},
        url_schemes=set(),
        link_rel=None,
    )


def _words(texts: Iterable[str]) -> str:
    return "".join(filter(str.isalnum, "".join(texts)))


def _number(tokens: Sequence[Token]) -> None:
    """Gives the items of lists the numbers that were written, where a browser would count on."""
    due = [1]
    for token in tokens:
        if token.type == "ordered_list_open":
            due.append(int(token.attrGet("start") or 1))
        elif token.type == "ordered_list_close":
            due.pop()
        elif token.type == "list_item_open" and token.info:
            number = int(token.info)
            if number != due[-1]:
                token.attrSet("value", str(number))
            due[-1] = number + 1


def _fence(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    """A block of code, and before it what stands behind the marks that open it."""
    info, content = html.escape(tokens[at].info.strip()), html.escape(tokens[at].content)
    head = f"<p><code>{info}</code></p>\n" if info else ""
    return f"{head}<pre><code>{content}</code></pre>\n"


_markdown.add_render_rule("fence", _fence)
