"""Layouts of other people's data: which column is the prompt, which are the responses, who won.

A layout is written as text, on the command line and in params.yaml: the name of a well-known data
set, or fields and where to find them, such as

    prompt=instruction,response_a=output_1,response_b=output_2,choice=preference:1|2|0

A place is a column; dots lead into objects and lists (`question.full_text`, `turns.0.content`), and
`*` stands for all items of a list (`completions.*.response`). Parts joined by `+` form one text, or
several votes. After a colon are the values for a, b and a tie, with `/` between alternatives; a
number between those for a and b counts for the nearer one. The fields decide the format.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from preferences.formats.cells import to_cell
from preferences.formats.known_layouts import KNOWN_LAYOUTS
from preferences.formats.places import Missing, found_at, number, texts_of, with_conversations
from preferences.formats.trees import tree_rows
from preferences.formats.turns import answer_of, in_common, without_opening
from preferences.opening import Limits
from preferences.reader import NumberedRow, Problems
from preferences.records import Row
from preferences.row_values import RowError
from preferences.schemas import shown

LayoutFormat = Literal["trl", "scored", "votes", "unpaired"]

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
_KEPT = {
    "trl": (
        *("prompt_id", "margin", "weight", "source", "round", "split", "label"),
        *("chosen_finished", "rejected_finished"),
    ),
    "scored": ("prompt_id", "round"),
    "votes": ("prompt_id", "round", "finished_a", "finished_b"),
    "unpaired": ("prompt_id",),
}
"""Fields that a format takes beside those that it needs."""
_CODED = ("choice", "votes", "label")
_DEFAULT_CODES = (("a",), ("b",), ("tie",))
_CHOICES = ("a", "b", "tie")


@dataclass(frozen=True, slots=True)
class Column:
    """Where a field is found, and what its values mean."""

    places: tuple[str, ...]
    codes: tuple[tuple[str, ...], ...] = ()
    """For a, b and, if there is a third, a tie: the values that say so."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Converts rows of other columns to those of a known format."""

    format: LayoutFormat
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Empty for Open Assistant's trees."""

    def limits(self, usual: Limits) -> Limits:
        """The limits for reading: pandas wrote some sets, and trees are deep."""
        deep = usual if self.columns else replace(usual, depth=max(usual.depth, 200))
        return replace(deep, nan_is_null=True)

    def rows(
        self, rows: Iterable[NumberedRow], problems: Problems, left_out: set[str]
    ) -> Iterator[NumberedRow]:
        """The converted rows; records problems, and in `left_out` the columns that are not read."""
        if not self.columns:
            yield from tree_rows(rows, problems)
            return
        read = {place for column in self.columns.values() for place in column.places}
        heads = read | {place.partition(".")[0] for place in read}
        for numbered in rows:
            try:
                given = with_conversations(numbered.row, read) if numbered.cells else numbered.row
                row = self._converted(given)
            except RowError as error:
                problems.add_row(numbered.where, str(error))
                continue
            left_out.update(set(numbered.row) - heads)
            if numbered.cells:
                row = {
                    name: value if isinstance(value, str) else to_cell(value)
                    for name, value in row.items()
                }
            yield NumberedRow(numbered.where, row, cells=numbered.cells)

    def _converted(self, row: Row) -> Row:
        convert = {
            "votes": self._votes,
            "scored": self._scored,
            "trl": self._pair,
            "unpaired": self._completion,
        }[self.format]
        extra = {name: self._value(row, name) for name in _KEPT[self.format] if self._has(name)}
        extra = {name: value for name, value in extra.items() if value is not None}
        return {**extra, **convert(row)}

    def _has(self, name: str) -> bool:
        return name in self.columns

    def _value(self, row: Row, name: str) -> Any:
        """The value of a field with one place."""
        return found_at(row, self.columns[name].places[0])

    def _prompt(self, row: Row) -> Any:
        return texts_of(row, self.columns["prompt"].places)

    def _two(self, row: Row) -> tuple[Any, list[str]]:
        """The prompt and both responses."""
        sides = [self._value(row, name) for name in ("response_a", "response_b")]
        if self._has("prompt"):
            prompt = self._prompt(row)
            return prompt, [answer_of(without_opening(side, prompt)) for side in sides]
        prompt, endings = in_common(*sides)
        return prompt, [answer_of(ending) for ending in endings]

    def _votes(self, row: Row) -> Row:
        prompt, (one, other) = self._two(row)
        if self._has("choice"):
            column = self.columns["choice"]
            choices, workers = [_choice(found_at(row, column.places[0]), column)], ["import"]
        else:
            column = self.columns["votes"]
            given = [found_at(row, place) for place in column.places]
            workers = list(column.places)
            if len(given) == 1 and isinstance(given[0], list):
                given = given[0]
                workers = [f"annotator {place}" for place in range(1, len(given) + 1)]
            choices = [_choice(value, column) for value in given]
            if self._has("workers"):
                workers = self._value(row, "workers")
        sides = {"response_a": one, "response_b": other}
        return {"prompt": prompt, **sides, "votes": choices, "workers": workers}

    def _scored(self, row: Row) -> Row:
        kind = "ranks" if self._has("ranks") else "scores"
        if self._has("responses"):
            responses, worth = self._value(row, "responses"), self._value(row, kind)
            if not (isinstance(responses, list) and isinstance(worth, list)):
                raise RowError(f"expected lists of responses and {kind}, got {shown(responses)}")
            prompt: Any = self._prompt(row)
            responses = [answer_of(response) for response in responses]
        else:
            prompt, responses = self._two(row)
            worth = [self._value(row, "score_a"), self._value(row, "score_b")]
        return {"prompt": prompt, "responses": responses, kind: [number(value) for value in worth]}

    def _pair(self, row: Row) -> Row:
        names = ("prompt", "chosen", "rejected")
        found = {name: self._value(row, name) for name in names[1:]}
        return {"prompt": self._prompt(row), **found} if self._has("prompt") else found

    def _completion(self, row: Row) -> Row:
        column = self.columns["label"]
        label = self._value(row, "label")
        if column.codes:
            said = _choice(label, column)
            if said not in ("a", "b"):
                raise _unexpected(label, column, column.codes[:2])
            label = said == "a"
        completion = answer_of(self._value(row, "completion"))
        return {"prompt": self._prompt(row), "completion": completion, "label": label}


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
    return tuple(_plain(number(value)) for value in text.split("/"))


def _format_of(columns: Mapping[str, Column]) -> LayoutFormat:
    for name, needed in _FORMATS:
        if needed <= set(columns):
            known = {"prompt", *needed, *_KEPT[name], *(("workers",) if name == "votes" else ())}
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
        except Missing:
            continue
        return name
    return None


def _choice(value: Any, column: Column) -> str:
    """What a value says; nothing is a skipped pair."""
    if value is None or value == "":
        return "skip"
    codes = column.codes or _DEFAULT_CODES
    given = _plain(number(value))
    for same in (str, str.casefold):  # pandas writes True for true
        for choice, code in zip(_CHOICES, codes, strict=False):
            if same(given) in map(same, code):
                return choice
    if near := _nearer(value, codes):
        return near
    raise _unexpected(value, column, codes)


def _unexpected(value: Any, column: Column, codes: tuple[tuple[str, ...], ...]) -> RowError:
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


def _plain(value: Any) -> str:
    """A value as a layout writes it: 1 for 1.0, true for True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.strip() if isinstance(value, str) else str(value)
