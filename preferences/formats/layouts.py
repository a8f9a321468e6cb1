"""Layouts of other people's data: which column is the prompt, which are the responses, who won.

How they are written: `maps`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from preferences.formats.cells import to_cell
from preferences.formats.choices import Column, choice_of, unexpected
from preferences.formats.places import found_at, number, opened, texts_of, with_conversations
from preferences.formats.trees import tree_rows
from preferences.formats.turns import answer_of, in_common, without_opening
from preferences.opening import Limits
from preferences.reader import NumberedRow, Problems
from preferences.records import Row
from preferences.row_values import RowError
from preferences.schemas import shown

LayoutFormat = Literal["trl", "scored", "votes", "unpaired"]

KEPT = {
    "trl": (
        *("prompt_id", "margin", "weight", "source", "round", "split", "label"),
        *("chosen_finished", "rejected_finished"),
    ),
    "scored": ("prompt_id", "round"),
    "votes": ("prompt_id", "round", "finished_a", "finished_b"),
    "unpaired": ("prompt_id",),
}
"""Fields that a format takes beside those that it needs."""


@dataclass(slots=True)
class Unread:
    """What a layout leaves out of the rows that it converts."""

    columns: set[str] = field(default_factory=set)
    responses: int = 0
    """Responses without a score or rank, which form no pair."""


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
        self, rows: Iterable[NumberedRow], problems: Problems, unread: Unread
    ) -> Iterator[NumberedRow]:
        """The converted rows; records problems, and in `unread` what is left out."""
        if not self.columns:
            yield from tree_rows(rows, problems)
            return
        read = {place for column in self.columns.values() for place in column.places}
        heads = read | {place.partition(".")[0] for place in read}
        for numbered in rows:
            try:
                given = with_conversations(numbered.row, read) if numbered.cells else numbered.row
                row = self._converted(given, unread)
            except RowError as error:
                problems.add_row(numbered.where, str(error))
                continue
            unread.columns.update(set(numbered.row) - heads)
            if numbered.cells:
                row = {
                    name: value if isinstance(value, str) else to_cell(value)
                    for name, value in row.items()
                }
            yield NumberedRow(numbered.where, row, cells=numbered.cells)

    def _converted(self, row: Row, unread: Unread) -> Row:
        convert = {
            "votes": self._votes,
            "scored": lambda row: self._scored(row, unread),
            "trl": self._pair,
            "unpaired": self._completion,
        }[self.format]
        extra = {name: self._value(row, name) for name in KEPT[self.format] if self._has(name)}
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
            choices, workers = [choice_of(found_at(row, column.places[0]), column)], ["import"]
        else:
            column = self.columns["votes"]
            given = [opened(found_at(row, place)) for place in column.places]
            workers = list(column.places)
            if len(given) == 1 and isinstance(given[0], list):
                given = given[0]
                workers = [f"annotator {place}" for place in range(1, len(given) + 1)]
            choices = [choice_of(value, column) for value in given]
        if self._has("workers"):
            named = opened(self._value(row, "workers"))
            workers = named if isinstance(named, list) else [named]
        sides = {"response_a": one, "response_b": other}
        return {"prompt": prompt, **sides, "votes": choices, "workers": workers}

    def _scored(self, row: Row, unread: Unread) -> Row:
        kind = "ranks" if self._has("ranks") else "scores"
        if self._has("responses"):
            responses, worth = (opened(self._value(row, name)) for name in ("responses", kind))
            if not (isinstance(responses, list) and isinstance(worth, list)):
                raise RowError(f"expected lists of responses and {kind}, got {shown(responses)}")
            prompt: Any = self._prompt(row)
            given = len(responses)
            responses, worth = _with_worth(responses, worth, kind)
            unread.responses += given - len(responses)
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
            said = choice_of(label, column)
            if said not in ("a", "b"):
                raise unexpected(label, column, column.codes[:2])
            label = said == "a"
        completion = answer_of(self._value(row, "completion"))
        return {"prompt": self._prompt(row), "completion": completion, "label": label}


def _with_worth(responses: list[Any], worth: list[Any], kind: str) -> tuple[list[Any], list[Any]]:
    """The responses that have a score or rank, with these; public sets lack some.

    Raises:
        RowError: fewer than two have one.
    """
    if len(responses) != len(worth):
        return responses, worth
    rated = [each for each in zip(responses, worth, strict=True) if each[1] not in (None, "")]
    if len(rated) < min(2, len(responses)):
        count = f"{len(rated)} of {len(responses)} responses have one of the {kind}"
        raise RowError(f"{count}, expected at least 2")
    return [response for response, _ in rated], [value for _, value in rated]
