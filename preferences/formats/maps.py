"""Maps: layouts written as text, on the command line and in params.yaml.

A map is the name of a well-known data set, or fields and where to find them, such as

    prompt=instruction,response_a=output_1,response_b=output_2,choice=preference:1|2|0

A place is a column; dots lead into objects and lists (`question.full_text`, `turns.0.content`), and
`*` stands for all items of a list (`completions.*.response`). Parts joined by `+` form one text, or
several votes. After a colon are the values for a, b and a tie, with `/` between alternatives; a
number between those for a and b counts for the nearer one. The fields decide the format.
"""

from collections.abc import Mapping

from preferences.formats.choices import Column, as_written
from preferences.formats.known_layouts import KNOWN_LAYOUTS
from preferences.formats.layouts import KEPT, Layout, LayoutFormat
from preferences.formats.places import found_at, number
from preferences.records import Row
from preferences.row_values import RowError

_FORMATS: tuple[tuple[LayoutFormat, frozenset[str]], ...] = (
    ("votes", frozenset({"response_a", "response_b", "choice"})),
    ("votes", frozenset({"response_a", "response_b", "votes"})),
    ("scored", frozenset({"response_a", "response_b", "score_a", "score_b"})),
    ("scored", frozenset({"responses", "scores"})),
    ("scored", frozenset({"responses", "ranks"})),
    ("trl", frozenset({"chosen", "rejected"})),
    ("unpaired", frozenset({"prompt", "completion", "label"})),
)
"""The format that fields are converted to, by those that it needs."""
_CODED = ("choice", "votes", "label")


def layout_of(text: str) -> Layout:
    """The layout that a text names or describes.

    Raises:
        ValueError: it is no known name, or describes no format.
    """
    if text == "oasst":
        return Layout("scored")
    if "=" not in text and text not in KNOWN_LAYOUTS:
        known = ", ".join(KNOWN_LAYOUTS)
        raise ValueError(f"map is {text!r}, expected field=column,... or one of {known}")
    columns: dict[str, Column] = {}
    for part in KNOWN_LAYOUTS.get(text, text).split(","):
        name, _, rest = (piece.strip() for piece in part.partition("="))
        if name in columns:
            raise ValueError(f"map: field {name!r} occurs twice")
        columns[name] = _column(name, rest)
    name = _format_of(columns)
    if name != "unpaired" and "label" in columns and columns["label"].codes:
        raise ValueError("map: values for label are known only with completion; expected a number")
    return Layout(name, columns)


def _column(name: str, text: str) -> Column:
    places, _, codes = text.partition(":")
    column = Column(
        tuple(place.strip() for place in places.split("+")),
        tuple(_code(code) for code in codes.split("|")) if codes else (),
    )
    if not all(column.places):
        raise ValueError(f"map: field {name!r} has no column; expected field=column")
    if codes and (name not in _CODED or not 2 <= len(column.codes) <= 3):
        raise ValueError(
            f"map: {name}={text!r}, expected values as in choice=column:A|B or column:A|B|TIE"
        )
    if len(column.places) > 1 and name not in ("prompt", "votes"):
        raise ValueError(f"map: {name}={text!r}, expected one column; + joins prompts and votes")
    return column


def _code(text: str) -> tuple[str, ...]:
    """Alternatives of one choice."""
    return tuple(as_written(number(value)) for value in text.split("/"))


def _format_of(columns: Mapping[str, Column]) -> LayoutFormat:
    for name, needed in _FORMATS:
        if needed <= set(columns):
            known = {"prompt", *needed, *KEPT[name], *(("workers",) if name == "votes" else ())}
            if others := sorted(set(columns) - known):
                raise ValueError(
                    f"map: unknown field {others[0]!r}; with {', '.join(sorted(needed))} "
                    f"known are {', '.join(sorted(known - needed))}"
                )
            if "prompt" not in columns and "responses" in needed:
                break
            return name
    choices = "; or ".join(", ".join(sorted(needed)) for _, needed in _FORMATS)
    raise ValueError(f"map: the fields form no pair; expected {choices}, and the prompt")


def likely_layout(row: Row) -> str | None:
    """The known layout whose columns a row has, if there is one."""
    for name, text in KNOWN_LAYOUTS.items():
        if not text:
            tree = isinstance(row.get("prompt"), dict) and "message_tree_id" in row
            if tree or {"message_id", "parent_id", "rank"} <= set(row):
                return name
            continue
        places = {place for column in layout_of(text).columns.values() for place in column.places}
        try:
            for place in places:
                found_at(row, place)
        except RowError:
            continue
        return name
    return None
