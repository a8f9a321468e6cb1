"""A page as people read it: what HTML, Markdown and our messages write in the place of a letter."""

import html
import json
import re
from collections.abc import Iterator

SHOWN = 2000
"""Characters of a text that the report shows (`tasks.reporting.page`)."""

_MARKED = re.compile(r"\\([\\`*_\[\]|~])")
"""A sign of Markdown that stands for itself (`preferences.report.escaped`)."""
_ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4})")
"""A letter in a message (`preferences.schemas.shown`)."""


def readings(text: str) -> Iterator[str]:
    """A text as it is, and as it reads as a table (CSV), HTML, Markdown, or a message's words."""
    yield text
    if '""' in text:
        yield text.replace('""', '"')
    if "&" in text:
        yield html.unescape(text)
    if "\\" in text:
        plain = _MARKED.sub(r"\1", html.unescape(text))
        yield plain
        yield _ESCAPE.sub(lambda found: chr(int(found[0][2:], 16)), plain)


def as_shown(prompt: str) -> str:
    """A prompt, or its messages as compact JSON, as far as the report shows it."""
    try:
        said = json.loads(prompt)
    except ValueError:
        said = None
    if isinstance(said, list) and said and all(isinstance(one, dict) for one in said):
        prompt = "\n\n".join(f"{one.get('role')}: {one.get('content')}" for one in said)
    shown = re.sub(r"[\x00-\x08\x0b-\x1f]", lambda m: chr(0x2400 + ord(m[0])), prompt[:SHOWN])
    shown = re.sub(r"[\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", shown)
    left = len(prompt) - SHOWN
    return f"{shown} … ({left:,} more characters)" if left > 0 else shown
