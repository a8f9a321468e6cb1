"""Hashes rows of several integer columns into one column."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def row_hashes(columns: Sequence[NDArray[np.integer[Any]]]) -> NDArray[np.uint64]:
    """A 64-bit hash of each row, equal where all columns are equal; the order of columns counts.

    Different rows collide as rarely as random hashes: among a million rows, with odds of 1 to 30
    million.

    Args:
        columns: at least one, each of shape (rows,).
    """
    bits = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        bits = (bits ^ column.astype(np.uint64)) * _FACTOR
        bits ^= bits >> _SHIFT
    return bits
