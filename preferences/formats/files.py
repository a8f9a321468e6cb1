"""Rows in and out of files: JSON Lines, a JSON list, CSV and Parquet, each also packed by gzip.

Whatever the kind of file, a row is held to the same rules: no NUL, no lone surrogate, no infinite
number, no deep nesting. A cell of a CSV file that holds a list, an object, a number or a truth
value is written as JSON; a text that would read as one of those is written as a JSON text.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from preferences.reader import (
    MAX_ROW_BYTES,
    MalformedDataError,
    NumberedRow,
    Problems,
    RowError,
    check_value,
    decode_json,
    open_binary,
    parse_value,
    stream_rows,
)
from preferences.records import Row, compact_json

Container = Literal["jsonl", "json", "csv", "parquet"]
MAX_JSON_BYTES = 1024**3
"""Largest JSON list; it has to be read at once, so larger data belong in JSON Lines."""
_SUFFIXES: dict[str, Container] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}


def container_of(path: Path) -> Container:
    """The kind of a file, by its name.

    Raises:
        MalformedDataError: the name ends in nothing known.
    """
    name = path.with_suffix("") if path.suffix == ".gz" else path
    if name.suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise MalformedDataError([f"{path}: the name ends in none of {known} (or these .gz)"], 1)
    return _SUFFIXES[name.suffix]


def read_records(path: Path) -> Iterator[NumberedRow]:
    """The rows of a file, or of all data files of a folder in the order of their names.

    Raises:
        MalformedDataError: after the last row, if a row or the file is damaged.
    """
    for file in _data_files(path) if path.is_dir() else [path]:
        if container_of(file) == "jsonl":
            yield from stream_rows(file, None)
        else:
            problems = Problems()
            yield from _checked(file, problems)
            problems.check()


def _checked(path: Path, problems: Problems) -> Iterator[NumberedRow]:
    rows = {"json": _json_rows, "csv": _csv_rows, "parquet": _parquet_rows}[container_of(path)]
    try:
        for where, row in rows(path, problems):
            try:
                check_value(row)
            except RowError as error:
                problems.add(where, str(error))
            else:
                yield NumberedRow(where, row)
    except FileNotFoundError:
        problems.add(str(path), "no such file")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problems.add(str(path), f"damaged gzip file ({error})")
    except OSError as error:
        problems.add(str(path), f"cannot be read ({error.strerror or error})")


def _data_files(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if _is_data(file))
    if not files:
        raise MalformedDataError([f"{folder}: no data file in this folder"], 1)
    return files


def _is_data(file: Path) -> bool:
    name = file.with_suffix("") if file.suffix == ".gz" else file
    return file.is_file() and name.suffix in _SUFFIXES and not file.name.startswith(".")


def _json_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    with open_binary(path) as stream:
        data = stream.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        problems.add(str(path), f"over {MAX_JSON_BYTES:,} bytes; write JSON Lines instead")
        return
    try:
        items = decode_json(data.removeprefix(b"\xef\xbb\xbf"))
    except RowError as error:
        problems.add(str(path), str(error))
        return
    if not isinstance(items, list):
        problems.add(str(path), "expected a list of objects")
        return
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict):
            yield f"{path} item {number}", item
        else:
            problems.add(f"{path} item {number}", "expected an object")


def _csv_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(MAX_ROW_BYTES)
    with open_binary(path) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
        table = csv.reader(text, strict=True)
        try:
            header = next(table, [])
            if len(set(header)) != len(header):
                problems.add(f"{path}:1", "a column name occurs twice")
                return
            for cells in table:
                where = f"{path}:{table.line_num}"
                if len(cells) == len(header):
                    yield (
                        where,
                        {name: _cell(cell) for name, cell in zip(header, cells, strict=True)},
                    )
                elif cells:
                    problems.add(where, f"{len(cells)} cells, expected {len(header)}")
        except csv.Error as error:
            problems.add(f"{path}:{table.line_num}", f"not CSV: {error}")
        except UnicodeDecodeError as error:
            problems.add(f"{path}:{table.line_num + 1}", f"not UTF-8 near byte {error.start + 1}")


def _cell(cell: str) -> Any:
    """The value of a CSV cell: JSON where it reads as a list, object, number, truth or quote."""
    if cell[:1] in ("[", "{", '"', "-") or cell[:1].isdigit() or cell in ("true", "false", "null"):
        try:
            return parse_value(cell.encode("utf-8"))
        except RowError:
            return cell
    return cell


def _parquet_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    number = 0
    try:
        # A Parquet file is read from its end, so a packed one is unpacked into memory.
        source = io.BytesIO(gzip.decompress(path.read_bytes())) if path.suffix == ".gz" else path
        for batch in pq.ParquetFile(source).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path} row {number}", row
    except pa.ArrowException as error:
        problems.add(f"{path} row {number + 1}", f"damaged Parquet file ({str(error)[:80]})")


def write_records(path: Path, rows: Iterable[Row]) -> int:
    """Writes rows as the file's name says, and returns their number; keys as in the first row.

    The file is there in full or not at all.
    """
    container = container_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    write = {"jsonl": _write_jsonl, "json": _write_json, "csv": _write_csv}
    try:
        if container == "parquet":
            count = _write_parquet(partial, list(rows), packed=path.suffix == ".gz")
        else:
            with _open_text(partial, packed=path.suffix == ".gz") as stream:
                count = write[container](stream, rows)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


@contextmanager
def _open_text(path: Path, *, packed: bool) -> Iterator[TextIO]:
    with ExitStack() as stack:
        binary: IO[bytes] = stack.enter_context(path.open("wb"))
        if packed:
            # Without name and time in it, so that the same rows give the same bytes.
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
    stream.write(json.dumps(items, ensure_ascii=False, indent=1) + "\n")
    return len(items)


def _write_csv(stream: TextIO, rows: Iterable[Row]) -> int:
    items = list(rows)
    names = _names(items)
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(names)
    table.writerows([_to_cell(row.get(name)) for name in names] for row in items)
    return len(items)


def _to_cell(value: Any) -> str:
    if isinstance(value, str):
        return value if _cell(value) == value else compact_json(value)
    return compact_json(value)


def _write_parquet(path: Path, rows: Sequence[Row], *, packed: bool) -> int:
    table = pa.Table.from_pylist([{name: row.get(name) for name in _names(rows)} for row in rows])
    if packed:
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
    else:
        pq.write_table(table, path)
    return len(rows)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
