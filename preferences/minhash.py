"""Finds near duplicates without comparing all pairs of rows: MinHash and banding.

The share of equal minima of two signatures estimates the Jaccard similarity of their sets of
shingles (Broder 1997). Prompt and responses have a signature each, and all must be similar: one
long response against two different short ones makes two different comparisons. Only rows that
agree in an entire band are compared, and only with a few such rows, so the work grows linearly
with the number of rows. The estimate selects candidates; their shingles decide.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import IO
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from preferences.languages import words_of
from preferences.normal_text import normal_text
from preferences.records import TIE
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
NEIGHBOURS = 32
"""With how many rows before it in a band a row is compared."""
TRIES = 200
"""How many earlier rows a row is compared with in full, at most."""
SHINGLE_WORDS = 3
ALIKE = 0.8

_PRIME = np.uint64((1 << 31) - 1)
_generator = np.random.default_rng(20240601)
# Multiply and add modulo a Mersenne prime: the family of hashes that MinHash needs.
_FACTORS = _generator.integers(1, int(_PRIME), size=HASHES, dtype=np.uint64)
_SHIFTS = _generator.integers(0, int(_PRIME), size=HASHES, dtype=np.uint64)
_PIECE = 1 << 14
"""Signatures compared at once, to copy few of them."""
_SWAPPED = [0, 2, 1]
"""Prompt, rejected, chosen."""
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
        words = words_of(normal_text(text))
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
    """Signatures in one contiguous block of memory, 128 bytes per part.

    The shingles behind them are in a file about as large as the texts.
    """

    def __init__(self, parts: int, file: IO[bytes]):
        """Starts empty; every signature has this many parts.

        `file` must be readable and writable, and the caller closes it.
        """
        self._parts = parts
        self._bytes = bytearray()
        self._waiting: list[str] = []
        self._characters = 0
        self._file = file
        self._ends = array("q", [0])

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

    def shingles(self, row: int, part: int = 0) -> Shingles:
        """The shingles of one text, as from the function `shingles`; only after `all`."""
        place = row * self._parts + part
        start, end = self._ends[place], self._ends[place + 1]
        self._file.seek(4 * start)
        return np.unique(np.frombuffer(self._file.read(4 * (end - start)), dtype=np.uint32))

    def _sign(self) -> None:
        if not self._waiting:
            return
        hashes, starts = _hashes(self._waiting)
        self._bytes += _minima(hashes, starts).tobytes()
        self._file.write(hashes.tobytes())
        ends = np.append(starts[1:], len(hashes)) + self._ends[-1]
        self._ends.frombytes(ends.astype(np.int64).tobytes())
        self._waiting, self._characters = [], 0


def near_duplicates(
    rows: SignatureList, labels: NDArray[np.float64], *, alike: float = ALIKE
) -> NDArray[np.bool_]:
    """True where an earlier row has the same label and every part is `alike` (0 to 1).

    The parts are prompt, chosen and rejected; a tie's responses are compared in either order.
    Candidates are compared in full, so what is found is near; shape (rows,).
    """
    search = _RowSearch(rows, labels, alike)
    for keys in search.bands():
        # Within a band by row, so that each is compared with those shortly before it.
        order = np.lexsort((search.owner, keys))
        for step in range(1, NEIGHBOURS + 1):
            same = keys[order[step:]] == keys[order[:-step]]
            if not same.any():
                break
            search.compare(order[step:][same], order[:-step][same])
    return search.found


class _RowSearch:
    """Rows, and the swapped views of those that are ties, of which each pair is compared once."""

    def __init__(self, rows: SignatureList, labels: NDArray[np.float64], alike: float):
        self._rows = rows
        self._signatures = rows.all()
        self._labels = labels
        self._alike = alike
        self._count = len(self._signatures)
        ties = np.flatnonzero(labels == TIE)
        self.owner = np.concatenate([np.arange(self._count), ties])
        """The row of each view: first all rows, then the ties, swapped."""
        self.found = np.zeros(self._count, dtype=np.bool_)
        self._compared: set[tuple[int, int]] = set()
        self._tries = np.zeros(self._count, dtype=np.uint8)

    def bands(self) -> Iterator[NDArray[np.uint64]]:
        """Per band, a hash of each view's band and label."""
        swapped = self._signatures[self.owner[self._count :]][:, _SWAPPED]
        labels = self._labels[self.owner].view(np.int64)
        for band, other in zip(_bands(self._signatures), _bands(swapped), strict=True):
            yield row_hashes([np.concatenate([band, other]), labels])

    def compare(self, views: NDArray[np.intp], others: NDArray[np.intp]) -> None:
        """Marks the rows of `views` that are near those of `others`, which are earlier."""
        rows, before = self.owner[views], self.owner[others]
        open_ = ~self.found[rows] & (rows != before) & (self._tries[rows] < TRIES)
        views, others = views[open_], others[open_]
        likely = self._likely(views, others)
        for view, other in zip(views[likely].tolist(), others[likely].tolist(), strict=True):
            row = int(self.owner[view])
            if self.found[row] or self._tries[row] >= TRIES or (view, other) in self._compared:
                continue
            self._compared.add((view, other))
            self.found[row] = self._near(view, other)
            self._tries[row] += 1

    def _likely(self, views: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether their estimate is at most three standard errors below what is near."""
        enough = self._alike - 3 * (self._alike * (1 - self._alike) / HASHES) ** 0.5
        found = np.zeros(len(views), dtype=np.bool_)
        for start in range(0, len(views), _PIECE):
            piece = slice(start, start + _PIECE)
            equal = self._signed(views[piece]) == self._signed(others[piece])
            found[piece] = equal.mean(axis=2).min(axis=1) >= enough
        return found

    def _signed(self, views: NDArray[np.intp]) -> Signatures:
        signed: Signatures = self._signatures[self.owner[views]]
        swapped = views >= self._count
        signed[swapped] = signed[swapped][:, _SWAPPED]
        return signed

    def _near(self, view: int, other: int) -> bool:
        return all(
            jaccard(self._shingles(view, part), self._shingles(other, part)) >= self._alike
            for part in range(self._signatures.shape[1])
        )

    def _shingles(self, view: int, part: int) -> Shingles:
        return self._rows.shingles(
            int(self.owner[view]), part if view < self._count else _SWAPPED[part]
        )


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
    for start in range(0, len(rows), _PIECE):
        piece = slice(start, start + _PIECE)
        equal = signatures[rows[piece]] == others[partners[piece]]
        found[piece] = equal.mean(axis=2).min(axis=1) >= alike
    return found
