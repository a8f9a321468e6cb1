"""How the cells of a CSV file are interpreted: by the format's schema, not by their appearance.

- Text is text: `42`, `true` and `"quoted"` are kept as they are. Where text or messages are
  allowed, a JSON list of turns in any spelling is what it is in a line of JSON; a text that would
  be mistaken for one is written as JSON text.
- Numbers, truth values, lists and objects are JSON; `True` and `False`, as pandas writes them, are
  accepted too.
- An empty cell is null where null is allowed, and so is `null` where text is not allowed.
"""

from typing import Any

from preferences.formats.turns import is_turn
from preferences.reader import parse_value
from preferences.records import Row, compact_json
from preferences.row_values import RowError
from preferences.schemas import Field, Schema


def decoded(row: Row, schema: Schema) -> Row:
    """The row with interpreted cells; a cell that does not fit the schema stays text."""
    fields = {field.name: field for field in schema.fields}
    return {
        name: _value(fields[name], cell) if name in fields else cell for name, cell in row.items()
    }


def to_cell(value: Any) -> str:
    """The cell that holds a value."""
    if value is None:
        return ""
    if isinstance(value, str) and not _is_special(value):
        return value
    return compact_json(value)


def _value(field: Field, cell: str) -> Any:
    if field.nullable and cell in (("",) if field.kind in ("text", "prompt") else ("", "null")):
        return None
    if field.kind == "text":
        return _text(cell)
    if field.kind == "prompt":
        found = _messages(cell)
        return _text(cell) if found is None else found
    if field.kind == "truth":
        return {"true": True, "false": False}.get(cell.lower(), cell)
    found = _json(cell)
    return cell if found is None else found


def _text(cell: str) -> str:
    found = _json(cell) if cell.startswith('"') else None
    return found if isinstance(found, str) and _is_special(found) else cell


def _is_special(text: str) -> bool:
    """Whether a text, written unchanged, would be read as something else."""
    return _messages(text) is not None or _text(text) != text


def _messages(cell: str) -> list[Any] | None:
    """The list in a cell, if its items look like messages."""
    found = _json(cell) if cell.startswith("[") else None
    return found if isinstance(found, list) and found and all(map(is_turn, found)) else None


def _json(cell: str) -> Any:
    """The JSON value in a cell; None if there is none."""
    try:
        return parse_value(cell.encode("utf-8"))
    except (RowError, UnicodeEncodeError):
        return None
