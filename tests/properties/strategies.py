"""Random batches for the property tests: numbers, masks, and junk to put behind the masks.

Hypothesis chooses shapes and seeds, numpy fills them in: drawing each number by itself would make
these tests ten times slower.
"""

import hypothesis.strategies as st
import numpy as np
import torch

JUNK = (0.0, -7.0, 1e30, float("inf"), float("-inf"), float("nan"))

junk = st.sampled_from(JUNK)
seeds = st.integers(0, 2**32 - 1)


def numbers(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers from -4 to 4 in steps of 0.1, so that zeros and equal ones occur (float64)."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-40, 41, size=shape) / 10)


@st.composite
def masks(draw: st.DrawFn, *, holes: bool = True) -> torch.Tensor:
    """A mask with a real token in every row: any pattern, or right-padded without `holes`."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    pattern = np.random.default_rng(draw(seeds))
    lengths = pattern.integers(1, width + 1, size=rows)
    mask = np.arange(width) < lengths[:, None]
    if holes:
        mask = pattern.random((rows, width)) < pattern.random()
        mask[np.arange(rows), lengths - 1] = True
    return torch.from_numpy(mask)


@st.composite
def batches(
    draw: st.DrawFn, count: int, *, holes: bool = True
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A mask and so many float64 tensors of its shape."""
    mask = draw(masks(holes=holes))
    return mask, list(numbers(draw(seeds), (count, *mask.shape)))
