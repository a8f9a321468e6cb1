"""Near duplicates without comparing every two rows: MinHash and banding.

The share of equal minima of two signatures estimates the Jaccard similarity of their sets of
shingles (Broder 1997). Prompt and answers have a signature each and must all be alike: a long
answer that meets two short ones makes two different comparisons. Rows that agree in one whole band
are compared, and only with the first such row, so the work grows with the number of rows and not
with its square.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from preferences.splitting import normal_text

Signature = NDArray[np.uint32]
"""Shape (parts, hashes)."""
Signatures = NDArray[np.uint32]
"""Shape (rows, parts, hashes)."""
Shingles = NDArray[np.uint32]
"""Shape (shingles,)."""

HASHES = 32
"""Per part; the estimate of a similarity of 0.8 has a standard error of 0.07."""
ROWS_PER_BAND = 2
"""16 bands of 2 per part: three parts 0.8 alike meet with probability 1 - (1 - 0.8^6)^16 = 0.99."""
SHINGLE_WORDS = 3
ALIKE = 0.8

_PRIME = np.uint64((1 << 31) - 1)
_generator = np.random.default_rng(20240601)
# Multiply-and-add modulo a Mersenne prime: a family of hashes as MinHash needs them.
_FACTORS = _generator.integers(1, int(_PRIME), size=(HASHES, 1), dtype=np.uint64)
_SHIFTS = _generator.integers(0, int(_PRIME), size=(HASHES, 1), dtype=np.uint64)


def signature(texts: Sequence[str]) -> Signature:
    """One MinHash per text."""
    return np.stack([_minima(text) for text in texts])


def shingles(text: str) -> Shingles:
    """Hashes of all three words in a row, each once, in ascending order; shape (shingles,)."""
    words = normal_text(text).split()
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    found = {
        crc32(" ".join(words[start : start + SHINGLE_WORDS]).encode()) >> 1 for start in range(last)
    }
    return np.sort(np.fromiter(found, dtype=np.uint32, count=len(found)))


def jaccard(one: Shingles, other: Shingles) -> float:
    """What two sets have in common, as a share of what either has."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


# Answers to one prompt often follow each other.
@lru_cache(maxsize=64)
def _minima(text: str) -> NDArray[np.uint32]:
    hashes = shingles(text).astype(np.uint64)
    minima: NDArray[np.uint64] = ((_FACTORS * hashes + _SHIFTS) % _PRIME).min(axis=1)
    return minima.astype(np.uint32)


class SignatureList:
    """Signatures one after the other, in one block of memory: 128 bytes per part."""

    def __init__(self, parts: int):
        """Starts empty; every signature will have this many parts."""
        self._parts = parts
        self._bytes = bytearray()

    def append(self, texts: Sequence[str]) -> None:
        """Adds the signature of a row's texts."""
        self._bytes += signature(texts).tobytes()

    def all(self) -> Signatures:
        """What was added so far, without copying it."""
        return np.frombuffer(self._bytes, dtype=np.uint32).reshape(-1, self._parts, HASHES)


def near_duplicates(signatures: Signatures, *, alike: float = ALIKE) -> NDArray[np.bool_]:
    """True where every part is about `alike` or more (0 to 1) to a row before; shape (rows,)."""
    found = np.zeros(len(signatures), dtype=np.bool_)
    everywhere = np.arange(len(signatures))
    for band in _bands(signatures):
        _, first, group = np.unique(band, return_index=True, return_inverse=True)
        before = first[group]
        rows = everywhere[(before < everywhere) & ~found]
        found[rows] = _similar(signatures, rows, before[rows], alike)
    return found


def near_pairs(
    signatures: Signatures, others: Signatures, *, alike: float = ALIKE
) -> Iterator[tuple[int, int]]:
    """Indexes of rows and of others that seem nearly `alike` (0 to 1), some more than once.

    An estimate may be two standard errors too low, so short texts should be compared in full.
    """
    if not len(signatures) or not len(others):
        return
    enough = alike - 2 * (alike * (1 - alike) / HASHES) ** 0.5
    for band, other_band in zip(_bands(signatures), _bands(others), strict=True):
        keys, first = np.unique(other_band, return_index=True)
        place = np.searchsorted(keys, band)
        place[place == len(keys)] = 0
        rows = np.flatnonzero(keys[place] == band)
        partners = first[place[rows]]
        both = np.concatenate([signatures[rows], others[partners]])
        pairs = np.arange(len(rows))
        similar = _similar(both, pairs, pairs + len(rows), enough)
        yield from zip(rows[similar].tolist(), partners[similar].tolist(), strict=True)


def _bands(signatures: Signatures) -> Iterator[NDArray[np.uint64]]:
    """Per band, 64 bits for each row that are equal where the whole band is; shape (rows,)."""
    factors = np.random.default_rng(20240602).integers(
        1, 1 << 63, size=(signatures.shape[1] * ROWS_PER_BAND,), dtype=np.uint64
    ) | np.uint64(1)
    for start in range(0, HASHES, ROWS_PER_BAND):
        yield _mixed(signatures[:, :, start : start + ROWS_PER_BAND], factors)


def _mixed(band: NDArray[np.uint32], factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    flat = band.reshape(len(band), len(factors))
    mixed = np.zeros(len(band), dtype=np.uint64)
    for column, factor in zip(flat.T, factors, strict=True):
        mixed = (mixed ^ column.astype(np.uint64)) * factor
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _similar(
    signatures: Signatures, rows: NDArray[np.intp], others: NDArray[np.intp], alike: float
) -> NDArray[np.bool_]:
    """Whether rows are alike to others; in pieces, so that few signatures are copied at a time."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for start in range(0, len(rows), 1 << 16):
        piece = slice(start, start + (1 << 16))
        equal = signatures[rows[piece]] == signatures[others[piece]]
        found[piece] = equal.mean(axis=2).min(axis=1) >= alike
    return found
