"""National identity numbers of the common kinds, as people write them in running text.

Most carry check digits, which are verified; a number that is right by chance alone is accepted only
in a form that other numbers hardly have. Numbers without either (the Dutch BSN, the Australian tax
file number) are not looked for: a user's own pattern can add them.
"""

import re
from collections.abc import Callable
from datetime import date

_STRONG = r"(?<![\w.,-])"
_END = r"(?![\w-]|[.,]\d)"
_DNI_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_HETU_SIGNS = "0123456789ABCDEFHJKLMNPRSTUVWXY"


def _digits(found: str) -> list[int]:
    return [int(sign) for sign in found if sign.isdigit()]


def _weighted(digits: list[int], weights: tuple[int, ...]) -> int:
    return sum(digit * weight for digit, weight in zip(digits, weights, strict=False))


def luhn(found: str) -> bool:
    """Whether the last digit checks the others (ISO/IEC 7812, the Luhn algorithm)."""
    digits = _digits(found)[::-1]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _dni(found: str) -> bool:
    plain = found.upper().replace("-", "").replace(" ", "").replace(".", "")
    number = plain[:-1].replace("X", "0").replace("Y", "1").replace("Z", "2")
    return _DNI_LETTERS[int(number) % 23] == plain[-1]


_CF_ODD = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21) * 2
        + (2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23),
        strict=True,
    )
)


def _codice_fiscale(found: str) -> bool:
    code = found.upper()
    odd = sum(_CF_ODD[sign] for sign in code[:15:2])
    even = sum(int(sign) if sign.isdigit() else ord(sign) - ord("A") for sign in code[1:15:2])
    return chr(ord("A") + (odd + even) % 26) == code[15]


def _nir(found: str) -> bool:
    plain = found.replace(" ", "").upper().replace("2A", "19").replace("2B", "18")
    return int(plain[:13]) % 97 + int(plain[13:]) == 97


def _cpf(found: str) -> bool:
    digits = _digits(found)
    checks = (_weighted(digits, tuple(range(n + 1, 1, -1))) * 10 % 11 % 10 for n in (9, 10))
    return len(set(digits)) > 1 and list(checks) == digits[9:]


def _chinese(found: str) -> bool:
    digits = _digits(found[:17])
    if not _is_date(int(found[6:10]), int(found[10:12]), int(found[12:14])):
        return False
    rest = _weighted(digits, (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)) % 11
    return "10X98765432"[rest] == found[17].upper()


_DIHEDRAL = tuple(
    tuple(
        (row + column) % 5 + 5 * (column > 4) if row < 5 else (row - column) % 5 + 5 * (column < 5)
        for column in range(10)
    )
    for row in range(10)
)
_PERMUTED = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)


def _aadhaar(found: str) -> bool:
    """The check digit of Verhoeff (1969): products in the dihedral group of a pentagon."""
    check = 0
    for place, digit in enumerate(reversed(_digits(found))):
        permuted = digit
        for _ in range(place % 8):
            permuted = _PERMUTED[permuted]
        check = _DIHEDRAL[check][permuted]
    return check == 0


def _korean(found: str) -> bool:
    digits = _digits(found)
    month, day = digits[2] * 10 + digits[3], digits[4] * 10 + digits[5]
    return 1 <= month <= 12 and 1 <= day <= 31 and 1 <= digits[6] <= 8


def _pesel(found: str) -> bool:
    digits = _digits(found)
    month, day = (digits[2] * 10 + digits[3]) % 20, digits[4] * 10 + digits[5]
    sound = _weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0
    return sound and 1 <= month <= 12 and 1 <= day <= 31


def _personnummer(found: str) -> bool:
    digits = _digits(found)[-10:]
    month, day = digits[2] * 10 + digits[3], digits[4] * 10 + digits[5]
    return 1 <= month <= 12 and 1 <= day <= 31 and luhn("".join(map(str, digits)))


def _hetu(found: str) -> bool:
    day, month = int(found[:2]), int(found[2:4])
    number = int(found[:6] + found[7:10])
    return 1 <= day <= 31 and 1 <= month <= 12 and _HETU_SIGNS[number % 31] == found[10].upper()


def _kimlik(found: str) -> bool:
    digits = _digits(found)
    tenth = (7 * sum(digits[0:9:2]) - sum(digits[1:8:2])) % 10
    return digits[9] == tenth and digits[10] == sum(digits[:10]) % 10


def _always(_: str) -> bool:
    return True


# Digits of other scripts (Arabic, Devanagari) match \d, but these numbers are not written in them.
_FORMS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    # Never 000, 666 or from 900 on; no group is all zeros.
    (r"(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}", _always),
    (
        r"(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]"
        r"( ?)[0-9]{2}\1[0-9]{2}\1[0-9]{2}\1[A-D]",
        _always,
    ),
    (r"(?:[0-9]{2}\.?[0-9]{3}\.?[0-9]{3}|[XYZ]-?[0-9]{7})-?[A-HJ-NP-TV-Z]", _dni),
    (r"[A-Z]{6}[0-9]{2}[A-EHLMPRST][0-9]{2}[A-Z][0-9]{3}[A-Z]", _codice_fiscale),
    (
        r"[12]( ?)[0-9]{2}\1(?:0[1-9]|1[0-2])\1(?:[0-9]{2}|2[AB])\1[0-9]{3}\1[0-9]{3}\1[0-9]{2}",
        _nir,
    ),
    (r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", _cpf),
    (r"[1-79][0-9]{2}-[0-9]{3}-[0-9]{3}", luhn),
    (r"[1-8][0-9]{5}(?:19|20)[0-9]{9}[0-9X]", _chinese),
    # Not a list of years, nor part of a longer number.
    (r"(?<![0-9] )(?!20)[2-9][0-9]{3}([- ])[0-9]{4}\1[0-9]{4}(?! [0-9])", _aadhaar),
    (r"[0-9]{6}-[1-8][0-9]{6}", _korean),
    (r"[A-Z][AEIOUX][A-Z]{2}[0-9]{6}[HMX][A-Z]{5}[A-Z0-9][0-9]", _always),
    (r"[0-9]{11}", _pesel),
    (r"(?:19|20)?[0-9]{6}[-+][0-9]{4}", _personnummer),
    (r"[0-9]{6}[-+A-FU-Y][0-9]{3}[0-9A-FHJ-NPR-Y]", _hetu),
    (r"[1-9][0-9]{10}", _kimlik),
)
# Every form has six signs of a number, or the digits between capitals of the codice fiscale.
_LIKELY = re.compile(r"[0-9][0-9 .-]{5}|[0-9]{2}[A-Z][0-9]{2}[A-Z]")
_PATTERNS = tuple((re.compile(_STRONG + form + _END), check) for form, check in _FORMS)


def has_national_id(text: str) -> bool:
    """Whether the text contains the identity number of a person."""
    return _LIKELY.search(text) is not None and any(
        check(match.group()) for pattern, check in _PATTERNS for match in pattern.finditer(text)
    )
