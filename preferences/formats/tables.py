"""Reads rows of CSV and Parquet files: damage is recorded for its row, the rest is read."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from preferences.opening import Limits, open_binary, open_seekable, size_of
from preferences.reader import MAX_ROW_BYTES, TOO_LONG, Problems, check_blank
from preferences.records import Row
from preferences.row_values import RowError
from preferences.schemas import shown

_BATCH = 128
"""Rows of a Parquet file decoded at a time: half a gigabyte if each has the largest size."""
_UNREADABLE = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)
"""What Arrow, and Python for its values, raises if a file or a value is damaged."""
_SIGNS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What sets columns apart, in words."""


class _CsvLines:
    """The lines of a CSV file, limited per row like a row of JSON Lines."""

    def __init__(self, stream: TextIO, limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._blank = 0
        self.held = 0
        """Bytes of the lines since this was last reset to 0."""

    def __iter__(self) -> Iterator[str]:
        while line := self._stream.readline(MAX_ROW_BYTES + 1):
            # Inside a quoted cell a blank line is text, whose size is limited.
            self._blank += line.isspace() and not self.held
            self.held += size_of(line)
            check_blank(self._blank, self._limits)
            if self.held > MAX_ROW_BYTES:
                raise RowError(f"{TOO_LONG}; the rest of the file is not read")
            yield line


def tsv_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    """The rows of a tab-separated file, like those of a CSV file."""
    return csv_rows(path, problems, separator="\t")


def csv_rows(path: Path, problems: Problems, *, separator: str = ",") -> Iterator[tuple[str, Row]]:
    """The rows of a CSV file with their locations, all values texts; records problems."""
    csv.field_size_limit(MAX_ROW_BYTES)
    with open_binary(path, problems.limits) as binary:
        # Invalid UTF-8 becomes surrogates, so that the row it belongs to is known.
        text = io.TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline="")
        lines = _CsvLines(text, problems.limits)
        table = csv.reader(lines, delimiter=separator, strict=True)
        try:
            header = next(table, [])
            lines.held = 0
            if wrong := _header_problem(header, separator):
                problems.add(f"{path}:1", wrong)
                return
            after = table.line_num
            for cells in table:
                lines.held = 0
                # Quoted cells may hold line breaks: a row is named by the line that it begins in.
                where, after = f"{path}:{after + 1}", table.line_num
                if len(cells) != len(header):
                    if cells:
                        problems.add_row(where, f"{len(cells)} cells, expected {len(header)}")
                elif wrong := _undecoded(cells):
                    problems.add_row(where, wrong)
                else:
                    yield where, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            problems.add(f"{path}:{table.line_num}", f"not CSV: {error}")
        except RowError as error:
            problems.add(f"{path}:{table.line_num + 1}", str(error))


def _header_problem(header: list[str], separator: str) -> str:
    return (
        _undecoded(header)
        or ("a column name occurs twice" if len(set(header)) != len(header) else "")
        or _other_separator(header, separator)
    )


def _other_separator(header: list[str], separator: str) -> str:
    """The error for columns that another sign sets apart, as spreadsheets of some countries do."""
    found = next((sign for sign in _SIGNS if sign in header[0]), "") if len(header) == 1 else ""
    if not found or found == separator:
        return ""
    way_out = "name the file .tsv" if found == "\t" else f"write it with {_SIGNS[separator]}"
    return (
        f"one column, {shown(header[0])}: expected {_SIGNS[separator]} between columns, found "
        f"{_SIGNS[found]}; {way_out}"
    )


def _undecoded(cells: list[str]) -> str:
    """The error for the first byte that was not UTF-8; empty if there is none."""
    for cell in cells:
        if not cell.isascii() and (found := re.search("[\udc80-\udcff]", cell)):
            return f"not UTF-8: byte 0x{ord(found[0]) - 0xDC00:02x}; save the table as CSV in UTF-8"
    return ""


def parquet_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    """The rows of a Parquet file with their locations; records problems."""
    with open_seekable(path, problems.limits) as stream:
        number = 0
        try:
            for row in _parquet_rows(path, stream, problems):
                number += 1
                where = f"{path} row {number}"
                if isinstance(row, RowError):
                    problems.add_row(where, str(row))
                else:
                    yield where, row
        except MemoryError:  # Arrow's is one of its exceptions too.
            raise
        except _UNREADABLE as error:
            problems.add(f"{path} row {number + 1}", f"damaged Parquet file ({_reason(error)})")


def _parquet_rows(path: Path, stream: IO[bytes], problems: Problems) -> Iterator[Row | RowError]:
    file = pq.ParquetFile(stream)
    names = file.schema_arrow.names
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(str(path), f"column {shown(name)}: occurs twice")
        return
    for batch in file.iter_batches(batch_size=_BATCH):
        yield from _rows_of(batch)


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row | RowError]:
    """The rows of a batch, or their errors."""
    try:
        yield from batch.to_pylist()
    except MemoryError:
        raise
    except _UNREADABLE:
        # Slow, row by row and cell by cell, but only after damage and it finds the damaged cells.
        for index in range(batch.num_rows):
            try:
                yield {name: _value(name, batch[name][index]) for name in batch.schema.names}
            except RowError as error:
                yield error


def _value(name: str, cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at {error.start + 1}"
        raise RowError(f"field {shown(name)}: not UTF-8: {byte}") from None
    except MemoryError:
        raise
    except _UNREADABLE as error:
        raise RowError(f"field {shown(name)}: cannot be read ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:80]
    return text.encode("unicode_escape").decode("ascii")
