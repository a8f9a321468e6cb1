"""The values of a row that its parser accepts and nothing after it can use."""

import math
from typing import Any

from preferences.opening import USUAL_LIMITS, Limits
from preferences.schemas import shown

_INTEGERS = range(-(2**63), 2**64)
"""Signed and unsigned 64-bit integers."""


class RowError(ValueError):
    """What is wrong with one row, without its location."""


def check_value(value: Any, limits: Limits = USUAL_LIMITS, depth: int = 0) -> None:
    """Refuses what parsers accept: deep nesting, NUL, lone surrogates, too large numbers.

    Raises:
        RowError: names the column, if `value` is a row.
    """
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, int | float):
        _check_number(value)
    elif isinstance(value, dict | list):
        if depth >= limits.depth:
            raise RowError(f"nested more than {limits.depth} levels deep")
        if isinstance(value, dict):
            _check_fields(value, limits, depth)
        else:
            for item in value:
                check_value(item, limits, depth + 1)


def without_nan(value: Any) -> Any:
    """A value with null for each NaN, which is how pandas writes an empty cell."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _check_fields(row: dict[str, Any], limits: Limits, depth: int) -> None:
    for name, value in row.items():
        _check_text(name)
        try:
            check_value(value, limits, depth + 1)
        except RowError as error:
            # Only the outermost name, the column, is shown.
            raise RowError(f"field {shown(name)}: {error}" if depth == 0 else str(error)) from None


def _check_number(value: float) -> None:
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise RowError("expected an integer of at most 64 bits")
    elif math.isnan(value):
        raise RowError("expected a number, found NaN")
    elif math.isinf(value):
        raise RowError("expected a number that fits a 64-bit float")


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise RowError("contains a NUL character")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise RowError(f"contains half a surrogate pair, U+{code:04X}") from None
