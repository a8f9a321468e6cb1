"""What two texts are compared by, and what of a text can be seen.

Compared are compatibility forms (NFKC) in lower case, without invisible characters and with single
spaces: a text copied in full-width letters, in another Unicode form or with zero-width characters
is the same text. Superscripts and other compatibility forms count as the plain character.
"""

import re
import unicodedata

_IGNORABLE = (
    # Control characters except white space, soft hyphen, grapheme joiner, Arabic and Hangul marks.
    "\u0000-\u0008\u000e-\u001b\u007f-\u0084\u0086-\u009f\u00ad\u034f\u061c\u115f\u1160"
    # Khmer vowels, Mongolian selectors, zero-width characters, directions, joiners, byte-order
    # mark, variation selectors, tags.
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufe00-\ufe0f"
    "\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_FLAG = "\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f"
"""The flags of England, Scotland and Wales differ in their tags only."""
_INVISIBLE = re.compile(f"({_FLAG})|[{_IGNORABLE}]")
_BLANKS = "\u2800\u3164\uffa0\ufffc\U0001d159\U00013441\U00013442"
"""Letters and signs without ink: empty Braille, Hangul fillers, the place of a lost object, an
empty note, Egyptian blanks."""
_UNSEEN = frozenset(_BLANKS + "\u115f\u1160")


def normal_text(text: str) -> str:
    """A text without what hardly tells two apart.

    That is case, white space (how much, and which), Unicode form, and what cannot be seen.
    """
    if text.isascii():
        normal = " ".join(text.casefold().split())
        return normal if normal.isprintable() else " ".join(_INVISIBLE.sub("", normal).split())
    for blank in _BLANKS:  # `str.translate` takes longer than all else here.
        text = text.replace(blank, " ")
    folded = unicodedata.normalize("NFKC", text).casefold()
    # Folding may leave letters in pieces, and what stood between two pieces is gone only now.
    seen = unicodedata.normalize("NFKC", _INVISIBLE.sub(r"\1", folded))
    return " ".join(seen.split())


def without_invisible(text: str) -> str:
    """The text as it is read: without characters that cannot be seen."""
    return text if text.isascii() else _INVISIBLE.sub(r"\1", text)


def visible_characters(text: str) -> int:
    """Length of a text without surrounding white space; 0 if none of it is visible."""
    stripped = text.strip()
    if stripped[:1].isascii() and stripped[:1].isalnum():
        return len(stripped)
    return len(stripped) if any(map(_is_seen, stripped)) else 0


def _is_seen(character: str) -> bool:
    """Not of the categories other, separator and mark: a lone accent shows nothing."""
    return unicodedata.category(character)[0] not in "CZM" and character not in _UNSEEN
