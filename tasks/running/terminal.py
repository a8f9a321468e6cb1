"""Texts of others on a terminal: what a model writes must not steer it."""

import re

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but for the tab and the line end, and overrides of the direction."""


def harmless(text: str) -> str:
    """The text with symbols or escapes in the place of what steers a terminal."""
    return _STEERING.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"
