"""Defects of single texts: extra turns, encoding damage, leftover HTML, personal data.

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

_COUNTRY = (  # calling codes (ITU-T E.164); no North American area code starts with 0 or 1
    r"(?:1(?=[ .-]?\(?[2-9])|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    r"|(?:2[1-69]|3[578]|42|5[09]|6[789]|8[058]|9[679])\d)"
)
PERSONAL = re.compile(
    r"(?P<email>(?<![\w.+-])(?!git@)[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b)"
    # International in groups, or 3, 3 and 4 digits; separated by spaces only, it may be any number.
    rf"|(?P<phone>(?<![\w.,/-])\+{_COUNTRY}(?:[ .-](?:\(0\) ?)?|(?=\())"
    r"(?:\(\d{1,5}\)|\d{1,12})(?:[ .-]?\d{2,8}(?!\d))*(?![ .-]?\d|[\w-])"
    r"|(?<![\w.,/-])(?:\(\d{2,4}\)[ .-]?\d{3}[ .-]|[2-9]\d\d(?:[ -]\d{3}-|\.\d{3}\.))\d{4}"
    r"(?![\w-]))"
    r"|(?P<iban>\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,29}(?!\w))"
    # As issuers number and group them; digits after a decimal point are not a card number.
    r"|(?P<card>(?<![\w-])(?<!\d[.,])(?:(?:[46]\d|5[1-5]|2[2-7]|35)\d\d(?:[ -]?\d{4}){3}"
    r"|3[0-8]\d\d[ -]?\d{6}[ -]?\d{4,5})(?![\w-]|[.,]\d))"
    # Keys are random: names in code contain words, and no digits next to capitals.
    r"|(?P<key>-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_\w{36,}\b"
    r"|\bsk-(?:[\w-]{0,40}[_-])?(?=[a-z0-9]*[A-Z])(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}"
    r"|\bxox[abp]-\d[\w-]{9,}|\bhf_[A-Za-z0-9]{30,}\b)",
)
_IBANS = (  # countries and lengths in the registry of ISO 13616, release 101
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
    "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 "
    "IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 "
    "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
    "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}


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
        and EXTRA_TURN.search(_CODE.sub("`", response)) is not None
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
        not text.isascii() and _FIRST.search(text) is not None and MOJIBAKE.search(text) is not None
    )


def has_html(text: str) -> bool:
    """Whether the text contains HTML tags or entities outside of code."""
    return (
        ("<" in text or "&" in text)
        and HTML.search(text) is not None
        and HTML.search(_CODE.sub("`", text)) is not None
    )


def personal_data(text: str) -> tuple[str, ...]:
    """Kinds of personal data and secrets in a text: email, phone, iban, card, key."""
    # Every alternative of the pattern contains one of these; most texts contain none.
    if not (
        _NUMBER.search(text)
        or "@" in text
        or "sk-" in text
        or "xox" in text
        or "AKIA" in text
        or "-----BEGIN" in text
        or ("_" in text and any(sign in text for sign in _PREFIXES))
    ):
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


_NUMBER = re.compile(r"\d(?:[\d .()-]{6}|(?<=[A-Z]{2}\d)\d)")
_PREFIXES = ("github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "hf_")


def _plausible(kind: str, found: str) -> bool:
    if kind == "phone" and found.startswith("+"):
        return 10 <= sum(map(str.isdigit, found)) <= 15
    if kind == "card":
        return _luhn(found)
    return kind != "iban" or _iban(found)


def _luhn(found: str) -> bool:
    """Whether the check digit of a payment card is right (ISO/IEC 7812, the Luhn algorithm)."""
    digits = [int(digit) for digit in found if digit.isdigit()][::-1]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _iban(found: str) -> bool:
    """Whether it starts with an IBAN: of its country's length and with correct check digits.

    The check (ISO 13616): with letters as numbers, 1 modulo 97. Capitals may follow after a space.
    """
    length = _IBAN_LENGTHS.get(found[:2], 0)
    for width in (length, length + (length - 1) // 4):  # in one piece, in groups of four
        account = found[:width].replace(" ", "")
        if len(account) == length > 0 and found[width : width + 1] in ("", " "):
            digits = "".join(str(int(sign, 36)) for sign in account[4:] + account[:4])
            if int(digits) % 97 == 1:
                return True
    return False
