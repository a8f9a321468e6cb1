"""Reads and writes rows: JSON Lines, a JSON list, CSV and Parquet, each optionally gzipped.

Tab-separated files are CSV with another separator. Excel workbooks are only read (see sheets.py).

The same rules hold for a row in every kind of file: no NUL, no lone surrogate, no infinite number,
no deep nesting, at most 4 MiB. Cells of a CSV file stay texts here (see cells.py).
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from preferences.formats.cells import to_cell
from preferences.formats.json_items import json_rows
from preferences.formats.sheets import xlsx_rows
from preferences.formats.tables import csv_rows, parquet_rows, tsv_rows
from preferences.opening import size_of, unreadable
from preferences.reader import (
    MAX_ROW_BYTES,
    TOO_LONG,
    MalformedDataError,
    NumberedRow,
    Problems,
    stream_objects,
)
from preferences.records import Row, compact_json
from preferences.row_values import RowError, check_value, without_nan

Container = Literal["jsonl", "json", "csv", "tsv", "parquet", "xlsx"]
_SUFFIXES: dict[str, Container] = {
    ".jsonl": "jsonl",
    ".jsonlines": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
}
_CELLS = ("csv", "tsv", "xlsx")
"""Kinds of files whose values are texts, which the format interprets."""
_NO_DATA = re.compile(
    r"[._].*|(readme|licen[cs]e|notice|citation|changelog|makefile|dockerfile)\b.*"
    r"|.*\.(md|rst|txt|html|pdf|cff|bib|ya?ml|toml|py|ipynb|sh|log|dvc|md5|sha256|png|jpe?g|svg)",
    re.IGNORECASE,
)
"""Names of files that commonly accompany data."""
_ABOUT = ("dataset_info.json", "dataset_infos.json")
"""What `datasets` writes about data; the hub has it beside the folder of many sets."""


def container_of(path: Path) -> Container:
    """The kind of a file, by its name.

    Raises:
        MalformedDataError: the suffix is unknown.
    """
    suffix = _suffix(path)
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise MalformedDataError(
            [f"{path}: unknown suffix, expected one of {known} (or these with .gz)"], 1
        )
    return _SUFFIXES[suffix]


def _suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix == ".gz" else path
    return name.suffix.lower()


def is_data(path: Path) -> bool:
    """Whether a file holds rows, by its name."""
    return _suffix(path) in _SUFFIXES and path.name not in _ABOUT


def read_records(path: Path, problems: Problems | None = None) -> Iterator[NumberedRow]:
    """The rows of a file, or of all data files of a folder in the order of their names.

    With `problems`, damage is recorded there as it is read, and not raised.

    Raises:
        MalformedDataError: a file has an unknown suffix; without `problems`, also after the last
            row, if a row or a file is damaged.
    """
    found = Problems() if problems is None else problems
    for file in _data_files(path, found) if path.is_dir() else [path]:
        kind = container_of(file)
        yield from stream_objects(file, found) if kind == "jsonl" else _checked(file, found)
    if problems is None:
        found.check()


def _checked(path: Path, problems: Problems) -> Iterator[NumberedRow]:
    kind = container_of(path)
    rows = {
        "json": json_rows,
        "csv": csv_rows,
        "tsv": tsv_rows,
        "parquet": parquet_rows,
        "xlsx": xlsx_rows,
    }[kind]
    try:
        for where, row in rows(path, problems):
            try:
                if size_of(row) > MAX_ROW_BYTES:
                    raise RowError(TOO_LONG)
                if problems.limits.nan_is_null:
                    row = without_nan(row)
                check_value(row, problems.limits)
            except RowError as error:
                problems.add_row(where, str(error))
            else:
                yield NumberedRow(where, row, cells=kind in _CELLS)
    except (EOFError, OSError, zlib.error) as error:
        problems.add(str(path), unreadable(error))


def _data_files(folder: Path, problems: Problems) -> Iterator[Path]:
    """The data files of a folder; other files that are not known to accompany data are problems."""
    empty = True
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or (entry.is_file() and _is_beside(entry)):
            continue
        empty = False
        if entry.is_dir():
            problems.add(str(entry), "subfolders are not read")
        elif is_data(entry):
            yield entry
        else:
            problems.add(str(entry), f"not a data file; expected one of {', '.join(_SUFFIXES)}")
    if empty:
        problems.add(str(folder), "no data file in this folder")


def _is_beside(file: Path) -> bool:
    known = file.name in _ABOUT or _NO_DATA.fullmatch(file.name) is not None
    return known and not is_data(file)


def write_records(path: Path, rows: Iterable[Row], usual: Mapping[str, Any] | None = None) -> int:
    """Writes rows in the format of the file's suffix and returns their number.

    The file is written completely or not at all. In a table (CSV, Parquet), a column that a row
    lacks is filled from `usual`, or else with null.

    Raises:
        MalformedDataError: the rows do not fit into a Parquet file, or the file is a workbook.
    """
    container = container_of(path)
    if container == "xlsx":
        raise MalformedDataError([f"{path}: workbooks are only read; write CSV instead"], 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    write = {"jsonl": _write_jsonl, "json": _write_json, "csv": _write_csv, "tsv": _write_tsv}
    if container in ("csv", "tsv", "parquet"):
        rows = _table(list(rows), usual or {})
    try:
        if container == "parquet":
            count = _write_parquet(partial, list(rows), packed=path.suffix == ".gz")
        else:
            with _open_text(partial, packed=path.suffix == ".gz") as stream:
                count = write[container](stream, rows)
        partial.replace(path)
    except (pa.ArrowException, OverflowError) as error:
        what = " ".join(str(error).split())[:80]
        raise MalformedDataError(
            [f"{path}: does not fit into Parquet, whose columns have one type each ({what})"], 1
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return count


@contextmanager
def _open_text(path: Path, *, packed: bool) -> Iterator[TextIO]:
    with ExitStack() as stack:
        binary: IO[bytes] = stack.enter_context(path.open("wb"))
        if packed:
            # Without name and time, so that the same rows give the same bytes.
            gz = gzip.GzipFile(filename="", fileobj=binary, mode="wb", mtime=0)
            binary = cast(IO[bytes], stack.enter_context(gz))
        yield stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8", newline=""))


def _write_jsonl(stream: TextIO, rows: Iterable[Row]) -> int:
    count = 0
    for row in rows:
        stream.write(compact_json(row) + "\n")
        count += 1
    return count


def _write_json(stream: TextIO, rows: Iterable[Row]) -> int:
    items = list(rows)
    stream.write(json.dumps(items, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    return len(items)


def _write_tsv(stream: TextIO, rows: Iterable[Row]) -> int:
    return _write_csv(stream, rows, "\t")


def _write_csv(stream: TextIO, rows: Iterable[Row], separator: str = ",") -> int:
    items = list(rows)
    # Characters of the line terminator are quoted; an unquoted lone \r would end a line on reading.
    table = csv.writer(stream, delimiter=separator, lineterminator="\r\n")
    table.writerow(items[0] if items else [])
    table.writerows([to_cell(value) for value in row.values()] for row in items)
    return len(items)


def _write_parquet(path: Path, rows: Sequence[Row], *, packed: bool) -> int:
    table = pa.Table.from_pylist(rows)
    if packed:
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
    else:
        pq.write_table(table, path)
    return len(rows)


def _table(rows: Sequence[Row], usual: Mapping[str, Any]) -> list[Row]:
    """The rows, each with the same columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, usual.get(name)) for name in names} for row in rows]
