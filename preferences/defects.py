"""What is wrong inside one text: extra turns, encoding damage, remains of HTML, personal data.

Patterns are narrow on purpose. A curly quote, another script or an emoji is no damage, so damage is
only what hardly ever stands in a sound text.
"""

import re

_CODE = re.compile(
    r"(`{3,}).*?(?:\1|\Z)|^[ >]*(~{3,}).*?(?:^[ >]*\2|\Z)|`[^`\n]+`", re.DOTALL | re.MULTILINE
)

_LINE = r"(?:^|\n) {0,3}"
_BOLD = r"(?:\*\*|__)?"
_COLON = rf"{_BOLD}[ \t]*[:：]"
EXTRA_TURN = re.compile(
    # Someone else's turn at the start of a line, bold or a heading too, or after the end of a
    # sentence; the markers of chat templates anywhere. A quoted one is no turn, and "User: root" is
    # a login. Small letters may be a setting or a gloss, so those need a blank line before them.
    rf"{_LINE}(?:#{{1,6}} +)?{_BOLD}(?:Human|HUMAN|Assistant|ASSISTANT){_COLON}"
    rf"|{_LINE}#{{1,6}} +{_BOLD}(?:User|USER){_COLON}"
    rf"|{_LINE}{_BOLD}(?:User|USER){_COLON}(?!{_BOLD}[ \t]*[\w.@-]+[ \t]*(?:\n|\Z))"
    r"|(?:^|\n[ \t]*\n) {0,3}(?:human|assistant):[ \t]+\S+[ \t]+\S"
    r"|(?:[.!?][\"”’)]*\s+\(?|[。！？])(?:Human|HUMAN|Assistant|ASSISTANT)[:：]"
    r"|<\|(?:im_start|im_end|endoftext|begin_of_text|end_of_text|eot_id|start_header_id"
    r"|end_header_id|user|assistant|system)\|>"
    # "a[INST]" is an element of an array. "### Response:" alone may be a heading of the answer.
    r"|<(?:start|end)_of_turn>|(?<!\w)\[INST\]|\[/INST\]|(?:^|\n)###[ \t]*(?i:instruction)[ \t]*:"
)

MOJIBAKE = re.compile(
    # UTF-8 read as Windows-1252. Two bytes: Ã or Â and what stands for a continuation byte, but no
    # quote or dash, which may well follow a capital Ã. Three bytes: â€ and one more. A byte order
    # mark, the start of an emoji, and two or more letters of Cyrillic.
    r"[ÂÃ][\u0080-\u00bfƒ„†‡ˆ‰Š‹ŒŽ˜™š›œžŸ]"
    r"|â€[\u0080-\u00bf\u2010-\u203a\u02c6\u02dcœžŸ™¦¢]"
    r"|ï»¿|ðŸ[\u0080-\u00bfŒ‘’“”•–—˜™š›œžŸ€ƒ„…†‡ˆ‰Š‹Ž]"
    r"|(?:[ÐÑ][\u0080-\u00bfƒ„…†‡ˆ‰Š‹Œ€]){2}"
)
# Control characters but tab, newline and carriage return; and the mark of a lost character.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd]")

HTML = re.compile(
    r"</?(?:br|p|div|span|b|i|u|em|strong|a|ul|ol|li|font|h[1-6]|td|tr|table|img|script)"
    # Bare, or with an attribute: "a<b and c>d" is no tag.
    r"(?:\s+[\w-]+\s*=[^<>\n]*|\s*/?)>"
    r"|&(?:amp|lt|gt|quot|apos|nbsp|hellip|mdash|ndash|[lr][sd]quo|#\d{2,5}|#x[0-9a-f]{2,4});",
    re.IGNORECASE,
)

PERSONAL = re.compile(
    r"(?P<email>\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b)"
    r"|(?P<phone>(?<![\w.,/-])(?:\+\d{1,3}[ .-]?)?(?:\(\d{2,4}\)[ .-]?|\d{3}[ .-])\d{3}[ .-]\d{4}"
    r"(?![\w-]))"
    r"|(?P<iban>\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b)"
    r"|(?P<card>(?<![\w-])(?:\d[ -]?){13,16}(?![\w-]))"
    r"|(?P<key>-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_\w{36,}\b"
    r"|\bsk-[\w-]{20,}|\bxox[abp]-[\w-]{10,}|\bhf_\w{30,}\b)",
)


def has_extra_turn(answer: str) -> bool:
    """Whether someone speaks inside the answer, outside of code, who is not the one who answers."""
    # Each alternative of the pattern has one of these; most answers have none.
    return (
        (":" in answer or "<" in answer or "[" in answer or "：" in answer)
        and any(sign in answer for sign in _TURN_SIGNS)
        and EXTRA_TURN.search(answer) is not None
        and EXTRA_TURN.search(_CODE.sub("`", answer)) is not None
    )


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


def is_damaged(text: str) -> bool:
    """Whether the text was decoded wrongly: mojibake, lost characters, control characters."""
    return CONTROL.search(text) is not None or (
        not text.isascii() and MOJIBAKE.search(text) is not None
    )


def has_html(text: str) -> bool:
    """Whether tags or entities of HTML stand in the text, outside of what is marked as code."""
    return ("<" in text or "&" in text) and HTML.search(_CODE.sub(" ", text)) is not None


def personal_data(text: str) -> tuple[str, ...]:
    """Kinds of personal data and secrets in a text: email, phone, iban, card, key."""
    if not (_DIGIT.search(text) or any(sign in text for sign in _SIGNS)):
        return ()
    if not _HINT.search(text):
        return ()
    return tuple(
        sorted(
            {
                str(match.lastgroup)
                for match in PERSONAL.finditer(text)
                if _plausible(str(match.lastgroup), match.group())
            }
        )
    )


_DIGIT = re.compile(r"\d")
_SIGNS = ("@", "AKIA", "-----BEGIN", "sk-", "xox", "hf_", "gh")
"""What a text without digits must have to match the hint, which takes longer to look for."""
_HINT = re.compile(r"@|\d[\d .()-]{6}|[A-Z]{2}\d\d|AKIA|-----BEGIN|sk-|xox|hf_|gh[pousr]_")


def _plausible(kind: str, found: str) -> bool:
    if kind == "card":
        return _luhn(found)
    return kind != "iban" or _iban(found)


def _luhn(found: str) -> bool:
    """The check digit of payment cards (ISO/IEC 7812): every second digit doubled, sum over 10."""
    digits = [int(digit) for digit in found if digit.isdigit()][::-1]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[1::2]]
    return (
        len(digits) >= 13 and len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0
    )


def _iban(found: str) -> bool:
    """The check digits of bank accounts (ISO 13616): letters as numbers, 1 modulo 97."""
    account = found.replace(" ", "")
    return int("".join(str(int(sign, 36)) for sign in account[4:] + account[:4])) % 97 == 1
