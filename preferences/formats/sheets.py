"""Reads Excel workbooks (.xlsx) through openpyxl, which is an optional dependency.

The first sheet is the table, its first row the names of the columns. Cells become texts as in CSV;
of a formula, the value that the workbook was saved with. What would be lost is refused: merged
cells, of which all but one are empty, and formulas without a value.
"""

import datetime
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
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
_MIDNIGHT = datetime.time()
_MAIN = "spreadsheetml/2006/main"
"""How the namespace of a sheet's elements ends."""


def xlsx_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    """The rows of a workbook's only sheet with their locations, all values texts."""
    with open_seekable(path, problems.limits) as stream:
        scan = _Scan()
        if wrong := _too_large(stream, problems, scan):
            problems.add(str(path), wrong)
            return
        number = 1
        try:
            sheet = _only_sheet(stream)
            if wrong := sheet if isinstance(sheet, str) else scan.lost:
                problems.add(str(path), wrong)
                return
            rows = _rows(sheet, problems.limits)
            header = _texts(next(rows, ()))
            if wrong := _header_problem(header):
                problems.add(f"{path} row 1", wrong)
                return
            for row in rows:
                number += 1
                yield from _located(row, header, f"{path} row {number}", problems)
        except _UNREADABLE as error:
            problems.add(f"{path} row {number + 1}", _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, RowError):
        return str(error)
    return f"damaged workbook ({' '.join(str(error).split())[:80]})"


def _too_large(stream: IO[bytes], problems: Problems, scan: "_Scan") -> str:
    """What is wrong with the archive, whose parts `scan` reads; empty if nothing is."""
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
        wide = any(scan.finds_wide_row(archive, name) for name in archive.namelist())
    stream.seek(0)
    return f"a row has over {_MOST_CELLS:,} cells" if wide else ""


@dataclass(slots=True)
class _Scan:
    """A look at the elements of a workbook before openpyxl, which would hold all cells of a row."""

    lost: str = ""
    """What openpyxl would read as empty cells: the first merged range, or formula without value."""
    _cells: int = 0
    _cell: str = ""
    _formula: bool = False
    _value: bool = False
    _in_value: bool = False

    def finds_wide_row(self, archive: zipfile.ZipFile, name: str) -> bool:
        """Whether a part has a row of more cells than Excel knows."""
        self._cells = 0
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._starts
        parser.EndElementHandler = self._ends
        parser.CharacterDataHandler = self._says
        try:
            with archive.open(name) as part:
                while chunk := part.read(_CHUNK):
                    parser.Parse(chunk)
                    if self._cells > _MOST_CELLS:
                        return True
        except (expat.ExpatError, *_UNREADABLE, EOFError, RuntimeError, zlib.error):
            return False  # What matters of it, openpyxl reports.
        return False

    def _starts(self, tag: str, attributes: dict[str, str]) -> None:
        space, _, kind = tag.rpartition(" ")
        if kind == "row":
            self._cells = 0
        elif kind == "c":
            self._cells += 1
            self._cell = attributes.get("r", "")
            # An empty text is a value as well.
            self._formula, self._value = False, attributes.get("t") == "str"
        elif space.endswith(_MAIN):
            self._formula |= kind == "f"
            self._in_value = kind == "v"
            if kind == "mergeCell":
                self._loses(f"cells {attributes.get('ref')} are merged; split them and fill each")

    def _says(self, text: str) -> None:
        self._value |= self._in_value and bool(text)

    def _ends(self, tag: str) -> None:
        self._in_value = False
        if tag.endswith(f"{_MAIN} c") and self._formula and not self._value:
            found = f"cell {self._cell} is a formula saved without its value"
            self._loses(f"{found}; save the workbook in a spreadsheet program")

    def _loses(self, what: str) -> None:
        self.lost = self.lost or what


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


def _rows(sheet: Any, limits: Limits) -> Iterator[tuple[Any, ...]]:
    """The cells of each row; many blank rows or empty cells are refused.

    Raises:
        RowError: there are too many.
    """
    # The size that a sheet declares, openpyxl would fill with empty cells.
    sheet.reset_dimensions()
    blank = empty = filled = 0
    for row in sheet.iter_rows():
        values = [cell.value for cell in row]
        empty += values.count(None)
        filled += len(values) - values.count(None)
        if empty > limits.empty_cells + _EMPTY_PER_FILLED * filled:
            raise RowError(
                f"over {limits.empty_cells:,} empty cells; the rest of the file is not read"
            )
        blank += not any(value not in (None, "") for value in values)
        check_blank(blank, limits)
        yield row


def _header_problem(header: list[str]) -> str:
    if len(header) > _MOST_COLUMNS:
        return f"{len(header):,} columns, expected at most {_MOST_COLUMNS:,}"
    return "a column name occurs twice" if len(set(header)) != len(header) else ""


def _located(
    row: tuple[Any, ...], header: list[str], where: str, problems: Problems
) -> Iterator[tuple[str, Row]]:
    """A row with its location; nothing if it is blank, or has a problem, which is recorded."""
    try:
        cells = _texts(row)
    except RowError as error:
        problems.add_row(where, str(error))
        return
    if len(cells) > len(header):
        problems.add_row(where, f"{len(cells)} cells, expected {len(header)}")
    elif cells:
        filled = cells + [""] * (len(header) - len(cells))
        yield where, dict(zip(header, filled, strict=True))


def _texts(row: tuple[Any, ...]) -> list[str]:
    """The texts of a row, without empty cells at its end.

    Raises:
        RowError: a cell holds an error.
    """
    cells = [_text(cell) for cell in row]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _text(cell: Any) -> str:
    value = cell.value
    if value is None:
        return ""
    if cell.data_type == "e":
        raise RowError(f"cell {cell.coordinate}: expected a value, found the error {value}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.datetime) and value.time() == _MIDNIGHT:
        return value.date().isoformat()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return _unescaped(value) if isinstance(value, str) else str(value)


def _unescaped(text: str) -> str:
    """A text with the control characters that a workbook spells out, such as `_x000D_`."""
    from openpyxl.utils.escape import unescape  # noqa: PLC0415

    return str(unescape(text))
