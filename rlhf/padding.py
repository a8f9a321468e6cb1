"""Lists of token ids to rectangular tensors: prompts padded left, everything else right."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, both (batch, longest); real tokens end at the right edge."""
    return _pad(rows, pad_id, left=True)


def pad_right(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, both (batch, longest); real tokens start at the left edge."""
    return _pad(rows, pad_id, left=False)


def _pad(rows: Sequence[Sequence[int]], pad_id: int, *, left: bool) -> tuple[Tensor, Tensor]:
    width = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[index, where] = torch.tensor(row, dtype=torch.int64)
        mask[index, where] = True
    return ids, mask


def position_ids(mask: Tensor) -> Tensor:
    """Position of each token among the real ones of its row, 0 at the first, wherever the pads are.

    Shape (batch, sequence). Padding gets 0, a legal position that the mask hides.
    """
    return (mask.long().cumsum(dim=-1) - 1).clamp_min(0)


def length_buckets(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator, *, window: int = 16
) -> list[list[int]]:
    """Row indices in batches of similar length, in a seeded random order; every row exactly once.

    A shuffled list is cut into windows of `window` batches, each sorted by length, so that little
    is padded while the order stays random. The last batch may be smaller.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), batch_size * window):
        chunk = sorted(order[start : start + batch_size * window], key=lambda row: lengths[row])
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]
