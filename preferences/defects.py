"""Defects of single texts: extra turns, encoding damage, leftover HTML.

The patterns are deliberately narrow. Curly quotes, other scripts and emoji are not damage; only
what hardly ever occurs in a sound text counts.
"""

import re
import unicodedata

_CODE = re.compile(
    r"(`{3,}).*?(?:\1|\Z)|^[ >]*(~{3,}).*?(?:^[ >]*\2|\Z)|`[^`\n]+`", re.DOTALL | re.MULTILINE
)

_LINE = r"(?:^|\n) {0,3}"
_BOLD = r"(?:\*\*|__)?"
_COLON = rf"{_BOLD}[ \t]*[:：]"
EXTRA_TURN = re.compile(
    # Another speaker's turn at the start of a line (bold and headings included) or after the end of
    # a sentence; the markers of chat templates anywhere. A quoted one is not a turn, "User: root"
    # is a login, and "1. Human: 46" a list item. Lower case may be a setting or a gloss, so it
    # needs a blank line before it.
    rf"{_LINE}(?:#{{1,6}} +)?{_BOLD}(?:Human|HUMAN|Assistant|ASSISTANT){_COLON}"
    rf"|{_LINE}#{{1,6}} +{_BOLD}(?:User|USER){_COLON}"
    rf"|{_LINE}{_BOLD}(?:User|USER){_COLON}(?!{_BOLD}[ \t]*[\w.@-]+[ \t]*(?:\n|\Z))"
    r"|(?:^|\n[ \t]*\n) {0,3}(?:human|assistant):[ \t]+\S+[ \t]+\S"
    r"|(?:(?<!\d)[.!?][\"”’)]*\s+\(?|[。！？])(?:Human|HUMAN|Assistant|ASSISTANT)[:：]"
    r"|<\|(?:im_start|im_end|endoftext|begin_of_text|end_of_text|eot_id|start_header_id"
    r"|end_header_id|user|assistant|system)\|>"
    # "a[INST]" is an array element. "### Response:" alone may be a heading in the response.
    r"|<(?:start|end)_of_turn>|(?<!\w)\[INST\]|\[/INST\]|(?:^|\n)###[ \t]*(?i:instruction)[ \t]*:"
)

_LABELLED = re.compile(
    rf"(?:^ {{0,3}}{_BOLD}[^\W\d_][\w '/-]{{0,40}}{_COLON}[^\n]*(?:\n|\Z)){{3,}}", re.M
)
"""Three lines or more, each of which begins with a word and a colon."""
_LABEL = re.compile(rf"^ {{0,3}}{_BOLD}([^:：*]+)", re.M)
_SPEAKERS = frozenset(("human", "user", "assistant", "ai", "bot", "system"))

# The bytes 80 to bf, which continue a UTF-8 character, as Windows-1252 shows them; those of them
# that hardly occur between two letters, as quotes and dashes may; and capitals.
_NEXT = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_ODD = "\u0080-\u009f¡-¨¬¯±µ¶¸º¼-¿€‚ƒ„†‡ˆ‰Š‹ŒŽ˜™š›œžŸ"
_CAPITAL = "Â-ÖØ-Þ"
MOJIBAKE = re.compile(
    # Ã and Â begin Western European letters and signs; in all-capital words they may end a word.
    r"[ÂÃ][\u0080-\u009f¡-ª¬-¯±´-¸º¼-¿€‚ƒ„†‡ˆ‰Š‹ŒŽ˜™š›œžŸ]|(?<![A-ZÀ-Þ«‹])[ÂÃ][\u00a0«»°²³¹]"
    r"|Ã[«»°²³¹](?=[a-z])|(?<!\w)Ã[‘“”•–—…](?=[^\W\d_])"
    # Other two-byte letters: a capital inside or at the start of a lower-case word.
    rf"|(?<=[a-z])[{_CAPITAL}][{_NEXT}]|(?<!\w)[{_CAPITAL}][{_ODD}°](?=[a-z])"
    # Other scripts, two characters each: Greek, Cyrillic, Hebrew, Arabic; and all three-byte ones.
    rf"|(?:[ÎÏ][{_NEXT}]){{2}}|(?:[ÐÑ][{_NEXT}]){{2}}|(?:[Ø-Û][{_NEXT}]){{2}}"
    rf"|(?:×[\u0090-\u00aa‘’“”•–—˜™š›œžŸ]){{2}}|(?:[à-ï][{_NEXT}]{{2}}){{2}}"
    # Three-byte signs (quotes, €, ™, arrows, boxes, the replacement character), a byte-order mark,
    # Vietnamese letters, emoji.
    rf"|â[\u0080-\u009f€‚ƒ„†‡ˆ‰ŠŒŽ˜™šœžŸ¤¬][{_NEXT}]|â[‹“”•–—][€‚¢-©¬®¯±´-¸º¼-¾]"
    rf"|ï(?:»¿|¿½|¼[{_NEXT}])|áº[{_ODD}]|á»[{_ODD}](?=[a-z])|ðŸ[{_NEXT}]"
)
_FIRST = re.compile(f"[Â-ô][{_NEXT}]")
"""The start of every alternative; rare in sound text."""
# Control characters except tab, newline and carriage return; and the replacement character.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd]")

HTML = re.compile(
    # "List<A>" and "Vec<Span>" are types in a program.
    r"<(?!(?<=\w<)(?-i:[A-Z][a-z]*)>)/?"
    r"(?:br|hr|p|pre|div|span|b|i|u|em|strong|small|su[bp]|code|blockquote|center|font|h[1-6]"
    r"|a|ul|ol|li|table|thead|tbody|t[dhr]|img|iframe|script)"
    # Bare or with an attribute: "a<b and c>d" is not a tag.
    r"(?:\s+[\w-]+\s*=[^<>\n]*|\s*/?)>|<!--[^<>]*-->"
    r"|&(?:amp|lt|gt|quot|apos|nbsp|hellip|[mn]dash|[lr][sda]quo|bull|euro|trade|szlig"
    r"|[a-z](?:acute|grave|circ|uml|tilde|cedil|ring|slash|elig)|#\d{2,7}|#x[0-9a-f]{2,6});"
    # In C these may be the address of a variable.
    r"|(?<![=(,])(?<![=(,] )&(?:copy|reg|cent|pound|yen|sect|deg|times|middot|frac\d\d);",
    re.IGNORECASE,
)


def without_code(text: str) -> str:
    """The text with a single backtick for each piece of code."""
    return _CODE.sub("`", text) if "`" in text or "~~~" in text else text


def has_extra_turn(response: str) -> bool:
    """Whether another speaker takes a turn inside the response, outside of code."""
    if not response.isascii():  # Full-width letters read like others.
        plain = unicodedata.normalize("NFKC", response)
        if plain != response and _turns(plain):
            return True
    return _turns(response)


def _turns(response: str) -> bool:
    # Every alternative of the pattern contains one of these; most responses contain none.
    return (
        (":" in response or "<" in response or "[" in response or "：" in response)
        and any(sign in response for sign in _TURN_SIGNS)
        and EXTRA_TURN.search(response) is not None
        and EXTRA_TURN.search(_LABELLED.sub(_unless_a_list, _CODE.sub("`", response))) is not None
    )


def _unless_a_list(lines: re.Match[str]) -> str:
    """Nothing of lines that say something of different things, one of which may be a human.

    Such as "Dog: 78", "Human: 46", "Cat: 38". Two speakers are a conversation.
    """
    names = [name.strip().casefold() for name in _LABEL.findall(lines[0])]
    spoken = sum(name in _SPEAKERS for name in names)
    return "\n" if spoken < 2 and len(set(names)) == len(names) else lines[0]


_TURN_SIGNS = (
    "uman",
    "UMAN",
    "ssistant",
    "SSISTANT",
    "User",
    "USER",
    "|>",
    "_of_turn>",
    "INST]",
    "##",
)


_MARKUP = re.compile(
    r"\b(?:[dx]?html\d?|xml|svg|css|jsx|tsx|php|javascript|typescript|jquery|react|vue|angular"
    r"|bootstrap|jinja|django|flask|markup|markdown|iframe|web ?(?:page|site|form)s?|home ?page"
    r"|landing page|(?:source|sample|example|the|some|this|my|your|following|write|fix) code"
    r"|code (?:snippet|for|that|to|example)|script|snippet)\b|</?[a-z][^<>]*>",
    re.IGNORECASE,
)


def asks_for_markup(prompt: str) -> bool:
    """Whether a prompt asks for code in which tags belong, or contains some itself."""
    return _MARKUP.search(prompt) is not None


def is_damaged(text: str) -> bool:
    """Whether the text was decoded wrongly: mojibake, lost characters, control characters."""
    return CONTROL.search(text) is not None or (
        not text.isascii() and _FIRST.search(text) is not None and MOJIBAKE.search(text) is not None
    )


def has_html(text: str) -> bool:
    """Whether the text contains HTML tags or entities outside of code."""
    return (
        ("<" in text or "&" in text)
        and HTML.search(text) is not None
        and HTML.search(_CODE.sub("`", text)) is not None
    )
