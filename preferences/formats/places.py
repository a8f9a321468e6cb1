"""Finds values inside a row by their place, such as `question.full_text`."""

from collections.abc import Collection, Sequence
from typing import Any

from preferences.formats.turns import as_messages
from preferences.reader import parse_value
from preferences.records import Row
from preferences.row_values import RowError
from preferences.schemas import shown


class Missing(RowError):
    """A row has nothing at a place."""


def found_at(row: Row, place: str) -> Any:
    """The value at a place; conversations in other spellings become messages.

    Raises:
        Missing: there is none.
    """
    if place in row:
        return as_messages(row[place])
    head, _, rest = place.partition(".")
    if not rest or head not in row:
        raise Missing(f"column {shown(place if head in row else head)}: missing")
    return as_messages(_inside(row[head], rest.split("."), place))


def _inside(value: Any, steps: Sequence[str], place: str) -> Any:
    for number, step in enumerate(steps):
        value = opened(value)
        if step == "*" and isinstance(value, list):
            return _in_each(value, steps[number + 1 :], place)
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise Missing(f"column {shown(place)}: nothing at {shown(step)}") from None
    return value


def _in_each(items: Sequence[Any], steps: Sequence[str], place: str) -> list[Any]:
    """What each item has there, or None; missing only if no item has anything."""
    found: list[Any] = []
    missing = None
    for item in items:
        try:
            found.append(_inside(item, steps, place))
        except Missing as error:
            missing = error
            found.append(None)
    if missing and all(value is None for value in found):
        raise missing
    return found


def opened(value: Any) -> Any:
    """A value; of a cell with JSON its content."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return parse_value(value.encode("utf-8"))
        except RowError:
            return value
    return value


def with_conversations(row: Row, places: Collection[str]) -> Row:
    """A row of cells with the conversations that its cells hold as JSON; other cells stay texts."""
    return {name: _turns_in(cell) if name in places else cell for name, cell in row.items()}


def _turns_in(cell: Any) -> Any:
    value = opened(cell)
    turns = as_messages(value)
    return cell if turns is value else turns


def texts_of(row: Row, places: Sequence[str]) -> Any:
    """The value of one place, or the texts of several, those that are not empty, as paragraphs.

    Raises:
        RowError: one of several is no text.
    """
    values = [found_at(row, place) for place in places]
    if len(values) == 1:
        return values[0]
    texts = [value for value in values if value not in (None, "")]
    for value in texts:
        if not isinstance(value, str):
            raise RowError(f"columns {' + '.join(places)}: expected texts, got {shown(value)}")
    return "\n\n".join(texts)


def number(value: Any) -> Any:
    """A number, also one written as text; anything else unchanged."""
    if isinstance(value, str):
        try:
            found = parse_value(value.strip().encode("utf-8"))
        except (RowError, UnicodeEncodeError):
            return value
        return value if isinstance(found, bool) or not isinstance(found, int | float) else found
    return value
