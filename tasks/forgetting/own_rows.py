"""Takes rows out of the user's own files, as far as these are JSON Lines."""

import codecs
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from preferences.records import NOBODY, compact_json
from tasks.forgetting.wanted import Wanted, is_judgment


class OwnRowsError(Exception):
    """An own file is not JSON Lines; the message names the file and the line."""


def editable(path: Path) -> bool:
    """Whether rows can be taken out here; other forms and pinned files are for people to edit."""
    if path.suffix != ".jsonl":
        return False
    try:
        _lines(path)
    except OwnRowsError:
        return False
    return True


def without(path: Path, wanted: Wanted) -> bytes:
    """The content of a file without the rows that have it; all else keeps its bytes.

    A judgment becomes a skip by nobody: the file still has an answer for each pair, so the round
    goes on instead of waiting for people.

    Raises:
        OwnRowsError: a line is not a JSON object.
    """
    lines, rows = [], _lines(path)
    skips = _skips_so_far(row for _, row in rows)
    for line, row in rows:
        if not row or not wanted.row(row):
            lines.append(line)
        elif is_judgment(row):
            skips += 1
            kept = ("judgment_id", "pair_id", "round", "shown_order", "revision")
            nobody = {"annotator_id": f"{NOBODY}-{skips}", "kind": NOBODY, "choice": "skip"}
            # Where `prepare` reads judgments, each has a version, be it an empty one.
            version = {"annotator_version": ""} if "annotator_version" in row else {}
            skip = compact_json({k: row[k] for k in kept if k in row} | nobody | version)
            lines.append(f"{skip}\r" if line.endswith("\r") else skip)
    mark = codecs.BOM_UTF8 if path.read_bytes().startswith(codecs.BOM_UTF8) else b""
    return mark + "\n".join(lines).encode()


def _skips_so_far(rows: Iterable[Mapping[str, Any]]) -> int:
    """The highest number of a skip of an earlier withdrawal: one name has one vote on a pair."""
    names = (str(row.get("annotator_id")) for row in rows if row.get("kind") == NOBODY)
    numbers = (name.removeprefix(f"{NOBODY}-") for name in names)
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def replace(path: Path, content: bytes) -> None:
    """Give a file another content at once; it keeps its permissions."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    draft.chmod(path.stat().st_mode & 0o777)
    draft.replace(path)


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Each line with its object, an empty one for a blank line."""
    found = []
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OwnRowsError(f"{path}: expected UTF-8, found {error.reason}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise OwnRowsError(f"{path}, line {number}: expected a JSON object: {error}") from None
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise OwnRowsError(f"{path}, line {number}: expected a JSON object, found {kind}")
        found.append((line, row))
    return found
