"""What the values of a column say: which response won, or that neither did."""

from dataclasses import dataclass
from typing import Any

from preferences.formats.places import number
from preferences.row_values import RowError
from preferences.schemas import shown

_DEFAULT_CODES = (("a",), ("b",), ("tie",))
_CHOICES = ("a", "b", "tie")


@dataclass(frozen=True, slots=True)
class Column:
    """Where a field is found, and what its values mean."""

    places: tuple[str, ...]
    codes: tuple[tuple[str, ...], ...] = ()
    """For a, b and, if there is a third, a tie: the values that say so."""


def choice_of(value: Any, column: Column) -> str:
    """What a value says; nothing is a skipped pair."""
    if value is None or value == "":
        return "skip"
    codes = column.codes or _DEFAULT_CODES
    given = as_written(number(value))
    for same in (str, str.casefold):  # pandas writes True for true
        for choice, code in zip(_CHOICES, codes, strict=False):
            if same(given) in map(same, code):
                return choice
    if near := _nearer(value, codes):
        return near
    raise unexpected(value, column, codes)


def unexpected(value: Any, column: Column, codes: tuple[tuple[str, ...], ...]) -> RowError:
    """The error for a value that is none of those that are expected."""
    pairs = zip(_CHOICES, codes, strict=False)
    expected = ", ".join(f"{'/'.join(code)} ({choice})" for choice, code in pairs)
    return RowError(f"column {shown(column.places[0])}: got {shown(value)}, expected {expected}")


def _nearer(value: Any, codes: tuple[tuple[str, ...], ...]) -> str | None:
    """The choice whose number is nearer to a number between both."""
    given = number(value)
    try:
        one, other = float(codes[0][0]), float(codes[1][0])
    except ValueError:
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not min(one, other) < given < max(one, other):
        return None
    to_one, to_other = abs(given - one), abs(given - other)
    return "tie" if to_one == to_other else "a" if to_one < to_other else "b"


def as_written(value: Any) -> str:
    """A value as a map writes it: 1 for 1.0, true for True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.strip() if isinstance(value, str) else str(value)
