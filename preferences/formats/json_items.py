"""Reads a JSON list item by item, so that a file may be larger than memory.

Many data sets on the hub are JSON Lines under the name of a list, `.json`; they are read as what
they are.
"""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from preferences.opening import Limits, open_binary
from preferences.reader import MAX_ROW_BYTES, Problems, decode_from, stream_objects
from preferences.records import Row
from preferences.row_values import RowError
from preferences.schemas import shown

_BLANK = re.compile(r"[ \t\n\r]*")
_CHUNK = 1 << 18


class _Text:
    """The text of a stream, of which only the part not yet used is held."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
        self._bytes = 0
        self._dropped = 0
        self._held = ""
        self._at = 0
        self._ended = False

    def _read(self) -> None:
        """Reads more, and forgets what was used.

        Raises:
            RowError: it is not UTF-8.
        """
        left = self._held[self._at :]
        self._dropped += self._at
        self._at = 0
        # As much as is held, so that an item over many chunks is not decoded once for each.
        chunk = self._stream.read(max(_CHUNK, len(left)))
        self._ended = not chunk
        waiting = len(self._decoder.getstate()[0])
        try:
            self._held = left + self._decoder.decode(chunk, final=self._ended)
        except UnicodeDecodeError as error:
            place = self._bytes - waiting + error.start + 1
            raise RowError(
                f"not UTF-8: byte 0x{error.object[error.start]:02x} at {place}"
            ) from None
        self._bytes += len(chunk)

    def next(self) -> str:
        """The next character that is not white space, which stays; empty at the end."""
        while True:
            found = _BLANK.match(self._held, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._held) or self._ended:
                return self._held[self._at : self._at + 1]
            self._read()

    def skip(self) -> None:
        """Passes the next character."""
        self._at += 1

    def value(self, limits: Limits) -> Any:
        """The JSON value that is next.

        Raises:
            RowError: it is not JSON, or too long.
        """
        while True:
            try:
                value, end = decode_from(self._held, self._at, limits)
            except json.JSONDecodeError as error:
                if self._ended:
                    raise self.wrong(error.msg, error.pos) from None
                if len(self._held) - self._at > MAX_ROW_BYTES:
                    what = f"row is over {MAX_ROW_BYTES:,} bytes long, or is not JSON"
                    place = self._place(self._at)
                    raise RowError(f"{what}, from character {place} on") from None
            else:
                # A number at the end of what was read may go on.
                if end < len(self._held) or self._ended or isinstance(value, dict | list | str):
                    self._at = end
                    return value
            self._read()

    def wrong(self, what: str, at: int | None = None) -> RowError:
        """An error at a place, by default the next character."""
        return RowError(f"not JSON: {what} at character {self._place(at)}")

    def _place(self, at: int | None) -> int:
        return self._dropped + (self._at if at is None else at) + 1


def json_rows(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    """The objects of a JSON list, or of lines, with their locations; records problems."""
    try:
        if _are_lines(path, problems.limits):
            for line in stream_objects(path, problems):
                yield line.where, line.row
        else:
            yield from _list_items(path, problems)
    except RowError as error:
        problems.add(str(path), str(error))


def _are_lines(path: Path, limits: Limits) -> bool:
    """Whether something follows an object.

    Raises:
        RowError: there is an object, but it is not JSON.
    """
    with open_binary(path, limits) as stream:
        text = _Text(stream)
        if text.next() != "{":
            return False
        text.value(limits)
        return text.next() != ""


def _list_items(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    with open_binary(path, problems.limits) as stream:
        text = _Text(stream)
        if text.next() != "[":
            text.value(problems.limits)
            problems.add(str(path), "expected a list of objects, or an object on each line")
            return
        text.skip()
        for number, item in enumerate(_items(text, problems.limits), start=1):
            where = f"{path} item {number}"
            if isinstance(item, dict):
                yield where, item
            else:
                problems.add_row(where, f"expected an object, got {shown(item)}")


def _items(text: _Text, limits: Limits) -> Iterator[Any]:
    """The values after the opening bracket."""
    more = text.next() != "]"
    while more:
        text.next()
        yield text.value(limits)
        if (after := text.next()) not in (",", "]"):
            raise text.wrong("Expecting ',' delimiter")
        more = after == ","
        if more:
            text.skip()
    text.skip()
    if text.next():
        raise text.wrong("Extra data")
