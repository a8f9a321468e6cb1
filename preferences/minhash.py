"""Near duplicates without comparing every two rows: MinHash and banding.

The share of equal minima of two signatures estimates the Jaccard similarity of their sets of
shingles (Broder 1997). Prompt and answers have a signature each and must all be alike: a long
answer that meets two short ones makes two different comparisons. Rows that agree in one whole band
are compared, and only with the first such row, so the work grows with the number of rows and not
with its square.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from preferences.splitting import normal_text

Signature = NDArray[np.uint32]
"""Shape (parts, hashes)."""

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


def _minima(text: str) -> NDArray[np.uint32]:
    words = normal_text(text).split()
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    shingles = {
        crc32(" ".join(words[start : start + SHINGLE_WORDS]).encode()) >> 1 for start in range(last)
    }
    hashes = np.fromiter(shingles, dtype=np.uint64, count=len(shingles))
    minima: NDArray[np.uint64] = ((_FACTORS * hashes + _SHIFTS) % _PRIME).min(axis=1)
    return minima.astype(np.uint32)


def near_duplicates(signatures: Sequence[Signature], *, alike: float = ALIKE) -> NDArray[np.bool_]:
    """True where every part is about `alike` or more (0 to 1) to a row before; shape (rows,)."""
    found = np.zeros(len(signatures), dtype=np.bool_)
    if not signatures:
        return found
    table = np.stack(list(signatures))
    for start in range(0, HASHES, ROWS_PER_BAND):
        band = table[:, :, start : start + ROWS_PER_BAND].reshape(len(table), -1)
        before = _first_equal(np.ascontiguousarray(band))
        similar = (table == table[before]).mean(axis=2).min(axis=1) >= alike
        found |= similar & (before < np.arange(len(table)))
    return found


def _first_equal(band: NDArray[np.uint32]) -> NDArray[np.intp]:
    """The first row that is equal to each row; shape (rows,)."""
    whole = band.view(np.dtype((np.void, band.dtype.itemsize * band.shape[1]))).reshape(-1)
    _, first, group = np.unique(whole, return_index=True, return_inverse=True)
    return first[group]
