"""Reads Excel workbooks (.xlsx) through openpyxl, which is an optional dependency.

The first sheet is the table, its first row the names of the columns. Cells become texts as in CSV;
of a formula, the value that the workbook was saved with.
"""

import datetime
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from xml.etree.ElementTree import ParseError
from xml.parsers import expat

from preferences.opening import Limits, open_seekable
from preferences.reader import Problems, check_blank
from preferences.records import Row
from preferences.row_values import RowError

_UNREADABLE = (
    zipfile.BadZipFile,
    ParseError,
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""What openpyxl raises for damaged workbooks."""
_MOST_COLUMNS = 1_000
_MOST_CELLS = 16_384
"""Cells that a row can have in Excel."""
_EMPTY_PER_FILLED = 20
_CHUNK = 1 << 18


def xlsx_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    """The rows of a workbook's only sheet with their locations, all values texts."""
    with open_seekable(path, problems.limits) as stream:
        if wrong := _too_large(stream, problems):
            problems.add(str(path), wrong)
            return
        number = 1
        try:
            sheet = _only_sheet(stream)
            if isinstance(sheet, str):
                problems.add(str(path), sheet)
                return
            rows = _texts(sheet, problems.limits)
            header = next(rows, [])
            if wrong := _header_problem(header):
                problems.add(f"{path} row 1", wrong)
                return
            for cells in rows:
                number += 1
                if len(cells) > len(header):
                    problems.add_row(
                        f"{path} row {number}", f"{len(cells)} cells, expected {len(header)}"
                    )
                elif cells:
                    filled = cells + [""] * (len(header) - len(cells))
                    yield f"{path} row {number}", dict(zip(header, filled, strict=True))
        except _UNREADABLE as error:
            problems.add(f"{path} row {number + 1}", _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, RowError):
        return str(error)
    return f"damaged workbook ({' '.join(str(error).split())[:80]})"


def _too_large(stream: IO[bytes], problems: Problems) -> str:
    """What is wrong with the archive; empty if nothing is."""
    try:
        with zipfile.ZipFile(stream) as archive:
            # zipfile unpacks no more than an entry declares.
            total = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        return f"damaged workbook ({error})"
    size = stream.seek(0, 2)
    stream.seek(0)
    most = max(problems.limits.unpacked_bytes, problems.limits.unpacking * size)
    if total > most:
        return f"cannot be read (unpacks to over {most:,} bytes)"
    with zipfile.ZipFile(stream) as archive:
        names = archive.namelist()
        wide = any(_has_wide_row(archive, name) for name in names)
    stream.seek(0)
    return f"a row has over {_MOST_CELLS:,} cells" if wide else ""


def _has_wide_row(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether a part has a row of more cells than Excel knows; openpyxl would hold them all."""
    cells = 0

    def starts(tag: str, _: dict[str, str]) -> None:
        nonlocal cells
        kind = tag.rpartition(" ")[2]
        cells = 0 if kind == "row" else cells + (kind == "c")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = starts
    try:
        with archive.open(name) as part:
            while chunk := part.read(_CHUNK):
                parser.Parse(chunk)
                if cells > _MOST_CELLS:
                    return True
    except (expat.ExpatError, *_UNREADABLE, EOFError, RuntimeError, zlib.error):
        return False  # What matters of it, openpyxl reports.
    return False


def _only_sheet(stream: IO[bytes]) -> Any:
    """The sheet of a workbook, or what is wrong."""
    try:
        from openpyxl import load_workbook  # noqa: PLC0415
    except ImportError:
        return "Excel workbooks need openpyxl (pip install openpyxl); or save it as CSV"
    sheets = load_workbook(stream, read_only=True, data_only=True).worksheets
    if len(sheets) != 1:
        return f"{len(sheets)} sheets, expected one; save the one with the data on its own"
    return sheets[0]


def _texts(sheet: Any, limits: Limits) -> Iterator[list[str]]:
    """The texts of each row; many blank rows or empty cells are refused.

    Raises:
        RowError: there are too many.
    """
    # The size that a sheet declares, openpyxl would fill with empty cells.
    sheet.reset_dimensions()
    blank = empty = filled = 0
    for row in sheet.iter_rows(values_only=True):
        empty += row.count(None)
        filled += len(row) - row.count(None)
        if empty > limits.empty_cells + _EMPTY_PER_FILLED * filled:
            raise RowError(
                f"over {limits.empty_cells:,} empty cells; the rest of the file is not read"
            )
        cells = _cells(row)
        blank += not cells
        check_blank(blank, limits)
        yield cells


def _header_problem(header: list[str]) -> str:
    if len(header) > _MOST_COLUMNS:
        return f"{len(header):,} columns, expected at most {_MOST_COLUMNS:,}"
    return "a column name occurs twice" if len(set(header)) != len(header) else ""


def _cells(row: tuple[Any, ...]) -> list[str]:
    """The texts of a row, without empty cells at its end."""
    cells = [_text(value) for value in row]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
