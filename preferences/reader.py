"""A strict JSON Lines reader that reports each problem of a file on one line, with its location.

Python's json accepts more than JSON (NaN, repeated keys, lone surrogates) and input of any size;
here the size of a row is limited before it is decoded, and its values are checked before they are
used. A file is always read to its end, so that the first twenty problems and their total are
reported together, and no row of a file with a problem is returned.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from preferences.records import Row
from preferences.schemas import MAX_DEPTH, Schema, shown

MAX_ROW_BYTES = 4 * 1024 * 1024
MAX_ERRORS_SHOWN = 20
_BOM = b"\xef\xbb\xbf"
_INTEGERS = range(-(2**63), 2**64)
"""Signed and unsigned 64-bit integers."""


class MalformedDataError(ValueError):
    """A data file that cannot be read; the message has one line per problem (callers exit 2)."""

    def __init__(self, errors: list[str], total: int) -> None:
        """Takes the first `errors`, each as `file:line: what`, and the `total` number."""
        self.errors = errors
        self.total = total
        rest = total - len(errors)
        more = [f"... and {rest} more problems; {total} in all"] if rest else []
        super().__init__("\n".join([*errors, *more]))


class RowError(ValueError):
    """What is wrong with one row, without its location."""


@dataclass(slots=True)
class Problems:
    """The first problems of a file, and their total number."""

    shown: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, where: str, what: str) -> None:
        """Records one problem."""
        self.total += 1
        if len(self.shown) < MAX_ERRORS_SHOWN:
            self.shown.append(f"{where}: {what}")

    def merge(self, error: "MalformedDataError") -> None:
        """Adds the problems that another reader found."""
        self.total += error.total
        self.shown = (self.shown + error.errors)[:MAX_ERRORS_SHOWN]

    def check(self) -> None:
        """Raises MalformedDataError if there are problems."""
        if self.total:
            raise MalformedDataError(self.shown, self.total)


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
            problems.add(numbered.where, problem)
        if not wrong:
            yield numbered
    problems.check()


def stream_objects(path: Path, problems: Problems) -> Iterator[NumberedRow]:
    """The objects of a file one by one, with any columns; records problems as it reads."""
    for number, line in _lines(path, problems):
        where = f"{path}:{number}"
        try:
            row = parse_object(line, first=number == 1)
        except RowError as error:
            problems.add(where, str(error))
        else:
            yield NumberedRow(where, row)


def _lines(path: Path, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; skips empty ones, and records and skips those that are too long."""
    number = 0
    try:
        with open_binary(path) as stream:
            while line := stream.readline(MAX_ROW_BYTES + 1):
                number += 1
                if len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
                    problems.add(f"{path}:{number}", f"row is over {MAX_ROW_BYTES:,} bytes long")
                    _skip_line(stream)
                elif line.strip():
                    yield number, line
    except FileNotFoundError:
        problems.add(str(path), "no such file")
    except IsADirectoryError:
        problems.add(str(path), "is a folder, expected a file")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problems.add(f"{path}:{number + 1}", f"damaged gzip file ({error})")
    except OSError as error:
        problems.add(str(path), f"cannot be read ({error.strerror})")


def open_binary(path: Path) -> IO[bytes]:
    """Opens a file for reading, unpacked if its name ends in .gz."""
    # GzipFile lacks a few attributes of IO[bytes] that are not used here.
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _skip_line(stream: IO[bytes]) -> None:
    while (rest := stream.readline(MAX_ROW_BYTES)) and not rest.endswith(b"\n"):
        pass


def parse_object(line: bytes, *, first: bool = False) -> Row:
    """The JSON object in `line`; a byte order mark may open the `first` line of a file.

    Raises:
        RowError: it is not UTF-8, not strict JSON, not an object, or nested too deeply.
    """
    value = parse_value(line.removeprefix(_BOM) if first else line)
    if not isinstance(value, dict):
        raise RowError(f"expected an object, got {shown(value)}")
    return value


def parse_value(data: bytes) -> Any:
    """The JSON value in `data`, strictly.

    Raises:
        RowError: it is not UTF-8, not strict JSON, or `check_value` refuses it.
    """
    value = decode_json(data)
    check_value(value)
    return value


def decode_json(data: bytes) -> Any:
    """The JSON value in `data`, before `check_value`.

    Raises:
        RowError: it is not UTF-8, or not strict JSON.
    """
    try:
        text = data.decode("utf-8")
        return _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{data[error.start]:02x} at {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise RowError(f"nested more than {MAX_DEPTH} levels deep") from None
    except RowError:
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


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def check_value(value: Any, depth: int = 0) -> None:
    """Refuses what parsers accept: deep nesting, NUL, lone surrogates, too large numbers.

    Raises:
        RowError: names the column, if `value` is a row.
    """
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, int | float):
        _check_number(value)
    elif isinstance(value, dict | list):
        if depth >= MAX_DEPTH:
            raise RowError(f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            _check_fields(value, depth)
        else:
            for item in value:
                check_value(item, depth + 1)


def _check_fields(row: dict[str, Any], depth: int) -> None:
    for name, value in row.items():
        _check_text(name)
        try:
            check_value(value, depth + 1)
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
