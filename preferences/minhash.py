"""Finds near duplicates without comparing all pairs of rows: MinHash and banding.

The share of equal minima of two signatures estimates the Jaccard similarity of their sets of
shingles (Broder 1997). Prompt and responses have a signature each, and all must be similar: one
long response against two different short ones makes two different comparisons. Only rows that
agree in an entire band are compared, and only with the first such rows, so the work grows linearly
with the number of rows.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import IO
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from preferences.normal_text import normal_text
from preferences.row_hashes import row_hashes

Signature = NDArray[np.uint32]
"""Shape (parts, hashes)."""
Signatures = NDArray[np.uint32]
"""Shape (rows, parts, hashes)."""
Shingles = NDArray[np.uint32]
"""Shape (shingles,)."""

HASHES = 32
"""Hashes per part; the estimate of a similarity of 0.8 has a standard error of 0.07."""
ROWS_PER_BAND = 2
"""16 bands of 2 per part: three parts of similarity 0.8 meet with P = 1 - (1 - 0.8^6)^16 = 0.99."""
PARTNERS = 8
"""How many of the texts that share a band with a text are compared with it: prompts from one
template share bands with many, and the first need not be the near one."""
SHINGLE_WORDS = 3
ALIKE = 0.8

_PRIME = np.uint64((1 << 31) - 1)
_generator = np.random.default_rng(20240601)
# Multiply and add modulo a Mersenne prime: the family of hashes that MinHash needs.
_FACTORS = _generator.integers(1, int(_PRIME), size=HASHES, dtype=np.uint64)
_SHIFTS = _generator.integers(0, int(_PRIME), size=HASHES, dtype=np.uint64)
_BATCH = 1 << 16
"""Characters hashed at once: enough to keep numpy busy, few enough for the caches."""


def signature(texts: Sequence[str]) -> Signature:
    """One MinHash per text."""
    return _minima(*_hashes(texts))


def shingles(text: str) -> Shingles:
    """Unique hashes of all three consecutive words, in ascending order; shape (shingles,)."""
    return np.unique(_hashes([text])[0])


def jaccard(one: Shingles, other: Shingles) -> float:
    """Size of the intersection over size of the union."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


def _hashes(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """Hashes of the shingles of all texts, concatenated, and where each text starts.

    A text of fewer than three words is one shingle, padded with empty words.
    """
    codes: list[int] = []
    lengths = np.empty(len(texts), dtype=np.intp)
    for number, text in enumerate(texts):
        words = normal_text(text).encode("utf-8").split(b" ")
        words += [b""] * (SHINGLE_WORDS - len(words))
        codes.extend(map(crc32, words))
        lengths[number] = len(words)
    flat = np.array(codes, dtype=np.uint64)
    last = len(flat) - SHINGLE_WORDS + 1
    hashes = row_hashes([flat[place : place + last] for place in range(SHINGLE_WORDS)])
    # Exclude shingles that span two texts.
    inside = np.ones(last, dtype=np.bool_)
    ends = np.cumsum(lengths)[:-1]
    for before in range(1, SHINGLE_WORDS):
        inside[ends - before] = False
    counts = lengths - SHINGLE_WORDS + 1
    return (hashes[inside] >> np.uint64(33)).astype(np.uint32), np.cumsum(counts) - counts


def _minima(hashes: NDArray[np.uint32], starts: NDArray[np.intp]) -> Signature:
    """The minimum of each text's hashes under each of the HASHES hash functions."""
    wide = hashes.astype(np.uint64)
    minima = np.empty((len(starts), HASHES), dtype=np.uint32)
    for column, (factor, shift) in enumerate(zip(_FACTORS, _SHIFTS, strict=True)):
        minima[:, column] = np.minimum.reduceat(_modulo_prime(wide * factor + shift), starts)
    return minima


def _modulo_prime(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Remainders modulo 2^31 - 1, by adding the digits to base 2^31 (2^31 leaves 1)."""
    for _ in range(2):
        values = (values & _PRIME) + (values >> np.uint64(31))
    return np.where(values == _PRIME, np.uint64(0), values)


class SignatureList:
    """Signatures in one contiguous block of memory: 128 bytes per part."""

    def __init__(self, parts: int):
        """Starts empty; every signature has this many parts."""
        self._parts = parts
        self._bytes = bytearray()
        self._waiting: list[str] = []
        self._characters = 0

    def append(self, texts: Sequence[str]) -> None:
        """Adds the signature of a row's texts."""
        self._waiting += texts
        self._characters += sum(map(len, texts))
        if self._characters >= _BATCH:
            self._sign()

    def all(self) -> Signatures:
        """Everything added so far, without a copy; nothing can be added afterwards."""
        self._sign()
        return np.frombuffer(self._bytes, dtype=np.uint32).reshape(-1, self._parts, HASHES)

    def _sign(self) -> None:
        if self._waiting:
            self._bytes += self._signed(*_hashes(self._waiting)).tobytes()
            self._waiting, self._characters = [], 0

    def _signed(self, hashes: NDArray[np.uint32], starts: NDArray[np.intp]) -> Signature:
        return _minima(hashes, starts)


class ShingledSignatures(SignatureList):
    """Signatures of single texts, with their shingles in a file about as large as the texts."""

    def __init__(self, file: IO[bytes]) -> None:
        """Starts empty; `file` must be readable and writable, and the caller closes it."""
        super().__init__(parts=1)
        self._file = file
        self._ends = array("q", [0])

    def shingles(self, index: int) -> Shingles:
        """The shingles of one text, as from the function `shingles`; only after `all`."""
        start, end = self._ends[index], self._ends[index + 1]
        self._file.seek(4 * start)
        return np.unique(np.frombuffer(self._file.read(4 * (end - start)), dtype=np.uint32))

    def _signed(self, hashes: NDArray[np.uint32], starts: NDArray[np.intp]) -> Signature:
        self._file.write(hashes.tobytes())
        ends = np.append(starts[1:], len(hashes)) + self._ends[-1]
        self._ends.frombytes(ends.astype(np.int64).tobytes())
        return super()._signed(hashes, starts)


def near_duplicates(signatures: Signatures, *, alike: float = ALIKE) -> NDArray[np.bool_]:
    """True where every part is at least about `alike` (0 to 1) to an earlier row; shape (rows,)."""
    found = np.zeros(len(signatures), dtype=np.bool_)
    everywhere = np.arange(len(signatures))
    for band in _bands(signatures):
        _, first, group = np.unique(band, return_index=True, return_inverse=True)
        before = first[group]
        rows = everywhere[(before < everywhere) & ~found]
        found[rows] = _similar(signatures, rows, signatures, before[rows], alike)
    return found


def near_pairs(
    signatures: Signatures, others: Signatures, *, alike: float = ALIKE
) -> Iterator[tuple[int, int]]:
    """Indexes of rows and others estimated to be `alike` (0 to 1); some pairs occur repeatedly.

    Includes pairs up to two standard errors below `alike`, so callers should compare in full.
    """
    if not len(signatures) or not len(others):
        return
    enough = alike - 2 * (alike * (1 - alike) / HASHES) ** 0.5
    for band, other_band in zip(_bands(signatures), _bands(others), strict=True):
        order = np.argsort(other_band, kind="stable")
        keys = other_band[order]
        rows, place = np.arange(len(band)), np.searchsorted(keys, band)
        for _ in range(PARTNERS):
            rows = rows[place[rows] < len(keys)]
            rows = rows[keys[place[rows]] == band[rows]]
            partners = order[place[rows]]
            similar = _similar(signatures, rows, others, partners, enough)
            yield from zip(rows[similar].tolist(), partners[similar].tolist(), strict=True)
            place[rows] += 1


def _bands(signatures: Signatures) -> Iterator[NDArray[np.uint64]]:
    """Per band, a 64-bit hash of each row's band; shape (rows,)."""
    for start in range(0, HASHES, ROWS_PER_BAND):
        band = signatures[:, :, start : start + ROWS_PER_BAND]
        yield row_hashes(
            [band[:, part, row] for part in range(band.shape[1]) for row in range(ROWS_PER_BAND)]
        )


def _similar(
    signatures: Signatures,
    rows: NDArray[np.intp],
    others: Signatures,
    partners: NDArray[np.intp],
    alike: float,
) -> NDArray[np.bool_]:
    """Whether rows are similar to their partners; in pieces, to copy few signatures at once."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for start in range(0, len(rows), 1 << 16):
        piece = slice(start, start + (1 << 16))
        equal = signatures[rows[piece]] == others[partners[piece]]
        found[piece] = equal.mean(axis=2).min(axis=1) >= alike
    return found
