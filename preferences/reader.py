"""A strict JSON Lines reader that reports each problem of a file on one line, with its location.

Python's json accepts more than JSON (NaN, repeated keys, lone surrogates) and input of any size;
here the size of a row is limited before it is decoded, and its values are checked before they are
used. A file is always read to its end, so that the first twenty problems and their total are
reported together, and no row of a file with a problem is returned. What many rows have in common is
one problem, with the place of the first and their number. Where a number of malformed rows may be
set aside, they are left out and listed; a damaged file is refused all the same.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from preferences.opening import USUAL_LIMITS, Limits, is_packing_error, open_binary, unreadable
from preferences.problem_line import ProblemLine, split_place
from preferences.records import Row
from preferences.row_values import RowError, check_value
from preferences.schemas import Schema, printable, shown

MAX_ROW_BYTES = 4 * 1024 * 1024
TOO_LONG = f"row is over {MAX_ROW_BYTES:,} bytes long"
"""The error for a row that is too long."""
_EXTRA_DATA = "not JSON: Extra data"
_LIST_HINT = "; a file that is one JSON list needs a name that ends in .json"
MAX_ERRORS_SHOWN = 20
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BLANK = " \t\n\r"
"""What JSON takes for white space."""


class MalformedDataError(ValueError):
    """A data file that cannot be read; the message has one line per problem (callers exit 2)."""

    def __init__(self, errors: list[str], total: int, counts: Sequence[int] | None = None) -> None:
        """Takes the first `errors`, `file:line: what`, which tell of `counts` of the `total`."""
        # A name of a file can hold anything; escaped, it neither steers a terminal nor ends a line.
        self.errors = [printable(error) for error in errors]
        self.total = total
        self.counts = [1] * len(errors) if counts is None else list(counts)
        super().__init__("\n".join([*self.errors, *self._more(total - sum(self.counts))]))

    def _more(self, rest: int) -> list[str]:
        return [f"... and {rest} more problems; {self.total} in all"] if rest else []


class TooManyProblemsError(MalformedDataError):
    """Data with so many problems that the rest was not read."""

    def _more(self, rest: int) -> list[str]:
        more = f"and {rest} more problems; " if rest else ""
        return [f"... {more}the rest was not read"]


@dataclass(slots=True)
class Problems:
    """What a reader accepts, and the first problems it found, with their total number."""

    limits: Limits = USUAL_LIMITS
    skip: int = 0
    """Malformed rows that may be set aside; with more, all of them are problems."""
    total: int = 0
    aside: list[str] = field(default_factory=list)
    """The first problem of each malformed row, of the first `skip` ones."""
    _rows: int = 0
    _row: str = ""
    _damaged: bool = False
    _lines: dict[str, ProblemLine] = field(default_factory=dict)
    """What is shown, by what makes it the same problem: the file and the words."""

    @property
    def shown(self) -> list[str]:
        """The first problems, one line each."""
        return [str(line) for line in self._lines.values()]

    @property
    def counts(self) -> list[int]:
        """How many problems each of them tells of."""
        return [line.count for line in self._lines.values()]

    def add(self, where: str, what: str) -> None:
        """Records a problem of the data as a whole."""
        self._damaged = True
        self._note(ProblemLine(f"{where}: {what}"), f"{where}: {what}")

    def add_row(self, where: str, what: str) -> None:
        """Records a problem of one row; those of the same row follow each other."""
        if where != self._row:
            self._row = where
            self._rows += 1
            if self._rows <= self.skip:
                self.aside.append(printable(f"{where}: {what}"))
        place, number = split_place(where)
        self._note(ProblemLine(f"{where}: {what}"), f"{place}: {what}", number)

    def merge(self, error: "MalformedDataError") -> None:
        """Adds the problems that another reader found."""
        self._damaged = True
        self.total += error.total
        for text, count in zip(error.errors, error.counts, strict=True):
            if text in self._lines:
                self._lines[text].count += count
            elif len(self._lines) < MAX_ERRORS_SHOWN:
                self._lines[text] = ProblemLine(text, count)

    def check(self) -> None:
        """Raises MalformedDataError unless all problems are rows that may be set aside."""
        if self.total and (self._damaged or self._rows > self.skip):
            raise MalformedDataError(self.shown, self.total, self.counts)

    def _note(self, line: ProblemLine, same: str, row: str | None = None) -> None:
        self.total += 1
        if known := self._lines.get(same):
            known.add(row)
        elif len(self._lines) < MAX_ERRORS_SHOWN:
            self._lines[same] = line
        if self.total >= self.limits.problems:
            raise TooManyProblemsError(self.shown, self.total, self.counts)


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row and its location, such as `data/x.jsonl:17`."""

    where: str
    row: Row
    cells: bool = False
    """Whether all values are texts of CSV cells, which a schema has to interpret."""


def read_rows(path: Path, schema: Schema) -> list[Row]:
    """All rows of a JSON Lines file, checked against `schema`; a `.gz` file is unpacked.

    Raises:
        MalformedDataError: the file is missing, damaged, or any row breaks the schema.
    """
    return [numbered.row for numbered in stream_rows(path, schema)]


def stream_rows(path: Path, schema: Schema) -> Iterator[NumberedRow]:
    """The rows one by one, in constant memory.

    Raises:
        MalformedDataError: after the last row, if any row was wrong; so use no row before the end.
    """
    problems = Problems()
    for numbered in stream_objects(path, problems):
        wrong = list(schema.problems(numbered.row))
        for problem in wrong:
            problems.add_row(numbered.where, problem)
        if not wrong:
            yield numbered
    problems.check()


def stream_objects(path: Path, problems: Problems) -> Iterator[NumberedRow]:
    """The objects of a file one by one, with any columns; records problems as it reads."""
    for number, line in _lines(path, problems):
        where = f"{path}:{number}"
        try:
            row = parse_object(line, problems.limits, first=number == 1)
        except RowError as error:
            note = problems.add if _is_torn(line, str(error)) else problems.add_row
            note(where, str(error))
        else:
            yield NumberedRow(where, row)


def _is_torn(line: bytes, error: str) -> bool:
    """Whether a bad line says that the file is damaged: by NULs, joined lines or an early end."""
    return b"\0" in line or not line.endswith(b"\n") or error.startswith(_EXTRA_DATA)


def _lines(path: Path, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; skips empty ones, and records and skips those that are too long."""
    number = 0
    try:
        with open_binary(path, problems.limits) as stream:
            blank = 0
            while line := stream.readline(MAX_ROW_BYTES + 1):
                number += 1
                if number == 1 and line.startswith(_UTF_16):
                    problems.add(str(path), "UTF-16, expected UTF-8")
                    return
                if line.isspace():
                    blank += 1
                    check_blank(blank, problems.limits)
                elif len(line) <= MAX_ROW_BYTES or line.endswith(b"\n"):
                    yield number, line
                else:
                    problems.add(f"{path}:{number}", TOO_LONG)
                    _skip_line(stream)
    except RowError as error:
        problems.add(f"{path}:{number}", str(error))
    except (EOFError, OSError, zlib.error) as error:
        place = f"{path}:{number + 1}" if is_packing_error(error) else str(path)
        problems.add(place, unreadable(error))


def check_blank(count: int, limits: Limits) -> None:
    """Refuses to read on in a file of blank lines.

    Raises:
        RowError: there were too many.
    """
    if count > limits.blank_lines:
        raise RowError(f"over {limits.blank_lines:,} blank lines; the rest of the file is not read")


def _skip_line(stream: IO[bytes]) -> None:
    while (rest := stream.readline(MAX_ROW_BYTES)) and not rest.endswith(b"\n"):
        pass


def parse_object(line: bytes, limits: Limits = USUAL_LIMITS, *, first: bool = False) -> Row:
    """The JSON object in `line`; a byte order mark may open the `first` line of a file.

    Raises:
        RowError: it is not UTF-8, not strict JSON, not an object, or nested too deeply.
    """
    line = line.removeprefix(_BOM) if first else line
    hint = _LIST_HINT if first and line.lstrip().startswith(b"[") else ""
    try:
        value = parse_value(line, limits)
    except RowError as error:
        raise RowError(f"{error}{hint}") from None
    if not isinstance(value, dict):
        raise RowError(f"expected an object, got {shown(value)}{hint}")
    return value


def parse_value(data: bytes, limits: Limits = USUAL_LIMITS) -> Any:
    """The JSON value in `data`, strictly.

    Raises:
        RowError: it is not UTF-8, not strict JSON, or `check_value` refuses it.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{data[error.start]:02x} at {error.start + 1}") from None
    start = len(text) - len(text.lstrip(_BLANK))
    try:
        value, end = decode_from(text, start, limits)
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    rest = text[end:].lstrip(_BLANK)
    if rest:
        raise RowError(f"{_EXTRA_DATA} at character {len(text) - len(rest) + 1}")
    check_value(value, limits)
    return value


def decode_from(text: str, start: int, limits: Limits = USUAL_LIMITS) -> tuple[Any, int]:
    """The JSON value that begins at `start` and the place after it, before `check_value`.

    Raises:
        JSONDecodeError: it is not JSON, or not complete.
        RowError: it is JSON only for Python.
    """
    try:
        return _DECODERS[limits.nan_is_null].raw_decode(text, start)
    except RecursionError:
        raise RowError(f"nested more than {limits.depth} levels deep") from None
    except (RowError, json.JSONDecodeError):
        raise
    except ValueError:
        # The only other error that json raises: Python's limit on the digits of an integer.
        raise RowError("expected a number of fewer digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RowError(f"field {shown(name)}: occurs twice")
        found[name] = value
    return found


def _constant(name: str) -> NoReturn:
    raise RowError(f"{name} is not a JSON number")


def _nan_as_null(name: str) -> None:
    return None if name == "NaN" else _constant(name)


_DECODERS = {
    nan_is_null: json.JSONDecoder(object_pairs_hook=_object, parse_constant=constant)
    for nan_is_null, constant in ((False, _constant), (True, _nan_as_null))
}
