"""Reads a file in any known format as a stream of pairs, each with its location."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from preferences.formats import label_studio, pairs, unpaired, votes
from preferences.formats.cells import decoded
from preferences.formats.contents import Contents
from preferences.formats.files import read_records
from preferences.formats.judged import judged
from preferences.formats.layouts import Layout, Unread
from preferences.formats.maps import likely_layout
from preferences.formats.turns import answer_of
from preferences.opening import USUAL_LIMITS, Limits
from preferences.reader import (
    MAX_ERRORS_SHOWN,
    MalformedDataError,
    NumberedRow,
    Problems,
    TooManyProblemsError,
)
from preferences.records import Preference, Prompt, Sourced, Voted
from preferences.row_values import RowError
from preferences.schemas import Field, Schema, printable

FormatName = Literal[
    "preferences", "trl", "hh", "scored", "votes", "label_studio", "unpaired", "judgments"
]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
Item = Sourced | Voted

_Parsed = tuple[Iterable[Preference | Voted], int]
_Parse = Callable[[Mapping[str, Any], str, Limits], _Parsed]
"""The pairs of a row, and the number of pairs left out because it has too many."""
_SCHEMAS: dict[FormatName, Schema] = {
    "preferences": pairs.OWN,
    "trl": pairs.TRL,
    "hh": pairs.HH,
    "scored": votes.SCORED,
    "votes": votes.VOTES,
    "label_studio": label_studio.LABEL_STUDIO,
    "unpaired": unpaired.UNPAIRED,
}
_ASKED = Schema(
    "rows with a prompt", (Field(name="prompt", kind="prompt", filled=True),), unknown="leave out"
)
_PARSERS: dict[FormatName, _Parse] = {
    "preferences": lambda row, *_: ([pairs.own_from_row(row)], 0),
    "trl": lambda row, *_: ([pairs.trl_from_row(row)], 0),
    "hh": lambda row, *_: ([pairs.hh_from_row(row)], 0),
    "scored": votes.scored_from_row,
    "votes": lambda *row: ([votes.votes_from_row(*row)], 0),
    "label_studio": lambda *row: ([label_studio.label_studio_from_row(*row)], 0),
}


@dataclass(slots=True)
class Source:
    """A file or folder of preference data; each iteration reads it anew.

    Raises (while iterating):
        MalformedDataError: at the end, if anything was wrong, or if an earlier iteration gave other
            pairs; use nothing before the end.
    """

    path: Path
    format: FormatName
    left_out: set[str] = field(default_factory=set)
    """Columns that the format does not know and that were not read."""
    alone: int = 0
    """Completions without a counterpart, and of a layout the responses without a score."""
    left: int = 0
    """Pairs left out because a row, or the completions of a prompt, would give too many."""
    aside: list[str] = field(default_factory=list)
    """Malformed rows that were set aside, each with its first problem."""
    rows: Callable[[], Iterator[NumberedRow]] | None = None
    """Provides the rows if they do not come from files at `path`."""
    layout: Layout | None = None
    """Where the fields are found, if not under their own names."""
    skip_malformed: int = 0
    """Malformed rows that may be set aside."""
    limits: Limits = USUAL_LIMITS
    _before: Contents | None = None

    def __iter__(self) -> Iterator[Item]:
        """The pairs in the order of the file."""
        limits = self.limits if self.layout is None else self.layout.limits(self.limits)
        problems = Problems(limits, self.skip_malformed)
        self.alone = self.left = 0
        contents = Contents()
        for item in self._items(problems):
            contents.add(item)
            yield item
        problems.check()
        self.aside = problems.aside
        contents.check_same(self._before, self.path)
        self._before = contents

    def _items(self, problems: Problems) -> Iterator[Item]:
        if self.format == "judgments":
            yield from judged(self.path, problems.limits)
        elif self.format == "unpaired":
            opposed = unpaired.pairs_of(self._answers(problems), problems.limits)
            self.alone, self.left = opposed.alone, opposed.left
            yield from opposed.pairs
        else:
            yield from self._parsed(problems)

    def _parsed(self, problems: Problems) -> Iterator[Item]:
        parse = _PARSERS[self.format]
        for numbered in self._checked(problems):
            try:
                found, left = parse(numbered.row, numbered.where, problems.limits)
            except RowError as error:
                problems.add_row(numbered.where, str(error))
                continue
            self.left += left
            for pair in found:
                yield pair if isinstance(pair, Voted) else Sourced(pair, numbered.where)

    def _answers(self, problems: Problems) -> Iterator[NumberedRow]:
        """Rows with a completion, as text where it is a message of the assistant."""
        for numbered in self._checked(problems):
            try:
                completion = answer_of(numbered.row["completion"])
            except RowError as error:
                problems.add_row(numbered.where, f'field "completion": {error}')
            else:
                yield replace(numbered, row={**numbered.row, "completion": completion})

    def _checked(self, problems: Problems) -> Iterator[NumberedRow]:
        """The rows that fit the schema; records the problems of others in file order."""
        schema = _SCHEMAS[self.format]
        unread = Unread(self.left_out)
        try:
            rows = self.rows() if self.rows else read_records(self.path, problems)
            if self.layout is not None:
                rows = self.layout.rows(rows, problems, unread)
            for numbered in _sound(rows, schema, problems):
                self.left_out.update(schema.others(numbered.row))
                yield numbered
            self.alone = unread.responses
        except TooManyProblemsError:
            raise
        except MalformedDataError as error:
            problems.merge(error)


def open_source(
    path: Path,
    format_name: FormatName | None = None,
    *,
    layout: Layout | None = None,
    skip_malformed: int = 0,
    limits: Limits = USUAL_LIMITS,
) -> Source:
    """The data at `path`; without a format name or a layout, it is detected from the first row.

    Raises:
        MalformedDataError: there is nothing to read, or the format cannot be detected.
    """
    name = layout.format if layout else format_name or detect(path, limits, skip_malformed)
    return Source(path, name, layout=layout, skip_malformed=skip_malformed, limits=limits)


def read_prompts(path: Path, layout: Layout | None = None) -> list[Prompt]:
    """The prompts of the data at `path`, in any format, or of any rows with a `prompt`.

    Of other data, those that are found by the layout.

    Raises:
        MalformedDataError: the data cannot be read.
    """
    try:
        source = open_source(path)
    except MalformedDataError:
        first = next(read_records(path, Problems()), None)
        own = first is not None and isinstance(first.row.get("prompt"), str | list)
        if first is None or not (own or layout):
            raise
        return list(_own_prompts(path, None if own else layout))
    if source.format in ("unpaired", "scored"):  # A row of these may belong to no pair.
        return list(_own_prompts(path))
    return [
        item.preference.prompt if isinstance(item, Sourced) else item.comparison.prompt
        for item in source
    ]


def _own_prompts(path: Path, layout: Layout | None = None) -> Iterator[Prompt]:
    problems = Problems(layout.limits(USUAL_LIMITS) if layout else USUAL_LIMITS)
    rows = read_records(path, problems)
    if layout:
        rows = layout.rows(rows, problems, Unread())
    for numbered in _sound(rows, _ASKED, problems):
        yield numbered.row["prompt"]
    problems.check()


def _sound(
    rows: Iterable[NumberedRow], schema: Schema, problems: Problems
) -> Iterator[NumberedRow]:
    """The rows that fit the schema, cells interpreted; records the problems of others."""
    for numbered in rows:
        row = decoded(numbered.row, schema) if numbered.cells else numbered.row
        row = schema.without_null_keys(row)
        wrong = list(schema.problems(row))
        for problem in wrong:
            problems.add_row(numbered.where, problem)
        if not wrong:
            # Where it is gets written, and a file's name need not be text.
            yield NumberedRow(printable(numbered.where), row)


def detect(path: Path, limits: Limits = USUAL_LIMITS, skip_malformed: int = 0) -> FormatName:
    """The format of the data at `path`, by the columns of the first row of a known format.

    Rows before it, up to the number that may be set aside, may have others.

    Raises:
        MalformedDataError: there is no row, or its format is unknown.
    """
    if (path / "judgments.jsonl").is_file():
        return "judgments"
    problems = Problems(limits, skip_malformed)
    unknown: MalformedDataError | None = None
    for row in islice(read_records(path, problems), skip_malformed + 1):
        try:
            return detect_row(str(path), row)
        except MalformedDataError as error:
            unknown = unknown or error
    if unknown is None:
        problems.check()
        unknown = MalformedDataError([f"{path}: no row to detect the format from"], 1)
    # Earlier problems come first, cut so that this one is always shown.
    room = MAX_ERRORS_SHOWN - len(unknown.errors)
    shown, counts = problems.shown[:room], problems.counts[:room]
    total = problems.total + unknown.total
    raise MalformedDataError(shown + unknown.errors, total, counts + unknown.counts) from None


def detect_row(path: str, first: NumberedRow | None) -> FormatName:
    """The format of data by the columns of their first row.

    Raises:
        MalformedDataError: there is no row, or its format is unknown.
    """
    if first is None:
        raise MalformedDataError([f"{path}: no row to detect the format from"], 1)
    columns = set(first.row)
    for name, needed in _RECOGNISED_BY:
        if needed <= columns:
            if name == "trl" and pairs.has_transcripts(first.row):
                return "hh"
            return name
    # Escaped, so that no control character of the data reaches a terminal.
    found = ", ".join(sorted(columns)).encode("unicode_escape").decode("ascii") or "none"
    known = likely_layout(first.row)
    hint = (
        f"as in {known}: --map {known}, or map in prepare.sources"
        if known
        else "name the format: --format, or format in prepare.sources; or map the columns: --map"
    )
    raise MalformedDataError(
        [f"{first.where}: columns of no known format ({found[:200]}); {hint}"], 1
    )


_RECOGNISED_BY: tuple[tuple[FormatName, set[str]], ...] = (
    ("label_studio", {"data", "annotations"}),
    ("votes", {"response_a", "response_b", "votes", "workers"}),
    ("scored", {"responses", "scores"}),
    ("scored", {"responses", "ranks"}),
    ("unpaired", {"prompt", "completion", "label"}),
    ("preferences", {"pair_id", "prompt_id", "prompt", "chosen", "rejected", "split"}),
    ("trl", {"chosen", "rejected"}),
)
