"""What the cells of a CSV file stand for: the schema of a format decides, not how a cell looks.

- Text is text: `42`, `true` and `"quoted"` stay what they are. Where text or messages may stand, a
  JSON list of messages is messages. A text that would be read as messages is written as JSON text.
- Numbers and truth values are read as JSON has them, and `True` and `False` as pandas writes them;
  lists and objects are JSON.
- An empty cell is null where null may stand, and so is `null` where no text may.
"""

from typing import Any

from preferences.reader import RowError, parse_value
from preferences.records import Row, compact_json
from preferences.schemas import Field, Schema


def decoded(row: Row, schema: Schema) -> Row:
    """The row with the values of its cells; what cannot be read as the schema wants stays text."""
    fields = {field.name: field for field in schema.fields}
    return {
        name: _value(fields[name], cell) if name in fields else cell for name, cell in row.items()
    }


def to_cell(value: Any) -> str:
    """The cell for a value."""
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
    """Whether a text, written as it is, would be read as something else."""
    return _messages(text) is not None or _text(text) != text


def _messages(cell: str) -> list[Any] | None:
    """The list that a cell holds, if its items look like messages."""
    found = _json(cell) if cell.startswith("[") else None
    if isinstance(found, list) and found:
        return found if all(isinstance(item, dict) and "role" in item for item in found) else None
    return None


def _json(cell: str) -> Any:
    """The JSON value that a cell holds, None if it holds none."""
    try:
        return parse_value(cell.encode("utf-8"))
    except (RowError, UnicodeEncodeError):
        return None
