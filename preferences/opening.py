"""Opens data files and limits what a file may cost.

Only regular files are opened: a named pipe or a device may never end. Packed files are unpacked as
they are read, up to a limit, since a megabyte of gzip can hold a gigabyte.
"""

import errno
import gzip
import io
import os
import stat
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What reading a file may cost, and how its rows may be built."""

    unpacked_bytes: int = 256 * 1024**2
    """Bytes that any gzip file may unpack to."""
    unpacking: int = 100
    """A larger gzip file may unpack to this many times its size."""
    blank_lines: int = 1_000_000
    """Blank lines in one file."""
    empty_cells: int = 2_000_000
    """Empty cells of a workbook, beyond twenty for each filled one: a styled cell is one, too."""
    problems: int = 100_000
    """Problems after which the rest of the data is not read."""
    pairs_of_prompt: int = 1_000
    """Pairs from one row of scored responses, or from the completions of one prompt; more are
    sampled."""
    votes_of_pair: int = 1_000
    """Votes on one pair."""
    held_bytes: int = 1024**3
    """Bytes of rows that are held in memory until the last one is read, in the formats that need
    all rows of a prompt together."""
    depth: int = 16
    """Deepest nesting of lists and objects in a row."""
    nan_is_null: bool = False
    """Whether `NaN` in JSON, which pandas writes for an empty cell, is read as null."""


USUAL_LIMITS = Limits()


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is a named pipe, a device or a socket.
    """
    _check_regular(path, path.stat().st_mode)
    # Another file may have taken its place; opening without waiting and looking again is safe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise OSError(errno.EINVAL, f"is {kind}, expected a regular file", str(path))


def open_binary(path: Path, limits: Limits = USUAL_LIMITS) -> IO[bytes]:
    """Opens a regular file for reading, unpacked if its name ends in .gz.

    Raises:
        OSError: it cannot be opened; while reading, it unpacks to more than the limits allow.
    """
    stream = open_regular(path)
    if path.suffix != ".gz":
        return stream
    size = os.fstat(stream.fileno()).st_size
    most = max(limits.unpacked_bytes, limits.unpacking * size)
    return cast(IO[bytes], io.BufferedReader(_Unpacked(stream, most), _CHUNK))


def open_seekable(path: Path, limits: Limits = USUAL_LIMITS) -> IO[bytes]:
    """Like `open_binary`; a packed file is unpacked into an unnamed temporary file first.

    Raises:
        OSError: it cannot be opened or unpacked, or unpacks to more than the limits allow.
    """
    if path.suffix != ".gz":
        return open_regular(path)
    unpacked = cast(IO[bytes], tempfile.TemporaryFile())  # noqa: SIM115 - returned open
    try:
        with open_binary(path, limits) as packed:
            while chunk := packed.read(_CHUNK):
                unpacked.write(chunk)
    except BaseException:
        unpacked.close()
        raise
    unpacked.seek(0)
    return unpacked


class _Unpacked(io.RawIOBase):
    """The content of a gzip stream, up to a number of bytes."""

    def __init__(self, packed: IO[bytes], most: int) -> None:
        self._packed = packed
        self._stream = gzip.GzipFile(fileobj=packed)
        self._most = most
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._stream.readinto(buffer)
        self._read += count
        if self._read > self._most:
            raise OSError(
                errno.EFBIG,
                f"unpacks to over {self._most:,} bytes; if that is right, unpack it before",
            )
        return count

    def close(self) -> None:
        self._stream.close()
        self._packed.close()
        super().close()


def is_packing_error(error: Exception) -> bool:
    """Whether it says that a gzip file is damaged."""
    return isinstance(error, EOFError | gzip.BadGzipFile | zlib.error)


def unreadable(error: Exception) -> str:
    """The error for a file that cannot be opened, or not be read to its end."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a folder, expected a file"
    if is_packing_error(error):
        return f"damaged gzip file ({error})"
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "is a link that leads to itself"
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


def size_of(value: Any) -> int:
    """Approximate size of a value as JSON, in bytes, dominated by its texts."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(size_of(name) + size_of(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return 2
