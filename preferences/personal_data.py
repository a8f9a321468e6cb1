"""Personal data and secrets in a text.

The patterns are deliberately narrow: only what hardly ever occurs in a sound text counts. A user
can add patterns (`validate.personal_patterns`).
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from preferences.national_ids import has_national_id, luhn

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "email": "e-mail address",
        "phone": "telephone number",
        "iban": "bank account (IBAN)",
        "card": "payment card",
        "id": "national identity number",
        "key": "access key",
    }
)
"""What is looked for; each kind in words."""
OwnPatterns = Mapping[str, re.Pattern[str]]
"""A user's own kinds."""

_COUNTRY = (  # calling codes (ITU-T E.164); no North American area code starts with 0 or 1
    r"(?:1(?=[ .-]?\(?[2-9])|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    r"|(?:2[1-69]|3[578]|42|5[09]|6[789]|8[058]|9[679])\d)"
)
_SAID = (
    r"(?i:\b(?:tel|telephone|phone|mobile|cell|fax|whatsapp|telefon|handy|mobil|t[ée]l[ée]phone"
    r"|tel[ée]fono|m[óo]vil|celular|telefone|cellulare|telefoon)(?: (?:no|number|nr|nummer))?)"
)
PERSONAL = re.compile(
    r"(?P<email>(?<![\w.+-])(?!git@)[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b)"
    # International in one piece, as E.164 writes it; a round number is an amount.
    rf"|(?P<phone>(?<![\w.,/-])\+{_COUNTRY}(?!\d*0{{6}})\d{{7,12}}(?![ .-]?\d|[\w-])"
    # International in groups, or North American; separated by spaces only, it may be any number.
    rf"|(?<![\w.,/-])\+{_COUNTRY}(?:[ .-](?:\(0\) ?)?|(?=\())"
    r"(?:\(\d{1,5}\)|\d{1,12})(?:[ .-]?\d{2,8}(?!\d))*(?![ .-]?\d|[\w-])"
    r"|(?<![\w.,/-])(?:1[ .-])?(?:\(\d{2,4}\)[ .-]?\d{3}[ .-]|[2-9]\d\d(?:[ -]\d{3}-|\.\d{3}\.))"
    r"\d{4}(?![\w-])"
    # Area code in parentheses, as in Brazil and Australia.
    r"|(?<![\w.,/-])\(\d{2,5}\) ?9?\d{4}[ -]\d{4}(?![\w-])"
    # With the trunk prefix 0, as at home in most of Europe, Asia, Africa and Australia.
    r"|(?<![\w.,:/-])(?<!\d )(?:\(0[1-9]\d{0,4}\)|0[1-9]\d{0,4})[ ./-]{1,3}\d{2,8}"
    r"(?:[ .-]\d{2,6}){0,4}(?![ .-]?\d|[\w/:-])"
    # Mobile numbers of China and India.
    r"|(?<![\w.,/-])(?:1[3-9]\d[ -]\d{4}[ -]\d{4}|[6-9]\d{4} \d{5})(?![ -]?\d|[\w-])"
    # Anything that is said to be one.
    rf"|(?:{_SAID})(?:[ \t]?[:：][ \t]{{0,2}}|\.?[ \t]{{1,2}})"
    r"\(?\d(?:[ ()./-]{0,2}\d){6,11}(?![ -]?\d|\w))"
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


def personal_data(text: str, own: OwnPatterns = MappingProxyType({})) -> tuple[str, ...]:
    """Kinds of personal data and secrets in a text: `KINDS`, and names in `own`."""
    found = {name for name, pattern in own.items() if pattern.search(text)}
    if has_national_id(text):
        found.add("id")
    return tuple(sorted(found | _found(text)))


def _found(text: str) -> set[str]:
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
        return set()
    return {
        str(match.lastgroup)
        for match in PERSONAL.finditer(text)
        if _plausible(str(match.lastgroup), match.group())
    }


_NUMBER = re.compile(r"\d(?:[\d .()/-]{6}|(?<=[A-Z]{2}\d)\d)")
_PREFIXES = ("github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "hf_")


def _plausible(kind: str, found: str) -> bool:
    if kind == "phone" and found.startswith("+"):
        return 10 <= sum(map(str.isdigit, found)) <= 15
    if kind == "phone":
        return _phone(found)
    if kind == "card":
        return luhn(found)
    return kind != "iban" or _iban(found)


_DAY = re.compile(r"\d\d([ ./-])\d\d\1\d{4}(?!\d)")


def _phone(found: str) -> bool:
    """Whether a local number has the digits of one, and is no date and no list of numbers."""
    if not found.lstrip("(").startswith("0"):
        return True
    groups = re.findall(r"\d+", found)
    counting = all(int(after) - int(before) == 1 for before, after in pairwise(groups))
    binary = set(found) <= set("01 .-/()")
    return 9 <= len("".join(groups)) <= 12 and not (counting or binary or _DAY.match(found))


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
