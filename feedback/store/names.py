"""Which names people may have: ones that everybody can see and tell apart."""

import unicodedata

LONGEST = 64
"""Characters in a name."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's controls, format characters (directions, zero width), surrogates and separators."""
_JOINERS = "\u200c\u200d"
"""Format characters that belong to words and emoji of some scripts."""
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
"""Counted by Unicode among letters and symbols, and shown as nothing."""


def check_name(name: str) -> None:
    """Refuses names that cannot be seen, or that hide or reorder characters.

    Raises:
        ValueError: the name is empty, too long, has no visible character, begins or ends with a
            space, or contains a control, direction or other invisible character.
    """
    visible = any(
        unicodedata.category(one)[0] in "LNPS" for one in name if one not in _BLANK_LETTERS
    )
    hidden = any(unicodedata.category(one) in _HIDDEN for one in name if one not in _JOINERS)
    if not visible or hidden or name != name.strip() or len(name) > LONGEST:
        raise ValueError(
            f"annotator is {name!r}, expected 1 to {LONGEST} visible characters, without control "
            "or direction characters and without spaces at the ends"
        )
