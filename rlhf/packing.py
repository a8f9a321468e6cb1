"""Packing: several sequences in one row, none of which sees another (Krell et al. 2021).

Positions restart at 0 with every sequence, and attention stays within one: `transformers` derives
the block-diagonal mask from the positions where no attention mask is given. `check_packing` checks
that the model at hand does so, whatever its architecture.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from rlhf.padding import pad_right
from rlhf.shapes import TokenIds

TOLERANCE = 1e-3
"""Largest difference, as a share of the largest hidden value, that packing may make (float32 gives
about 1e-6)."""


class PackingError(RuntimeError):
    """The model lets packed sequences see each other."""


def pack(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Indices of sequences in rows of at most `width` tokens: longest first, first row that fits.

    Raises:
        ValueError: a sequence is longer than a row.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        if length > width:
            raise ValueError(
                f"width: expected {length} or more for sequence {index}, found {width}"
            )
        place = next((row for row, left in enumerate(room) if left >= length), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(width)
        rows[place].append(index)
        room[place] -= length
    return rows


def packed_positions(lengths: Sequence[Sequence[int]]) -> TokenIds:
    """Positions (rows, longest) that restart with every sequence; each pad is one of its own."""
    rows = [[place for length in row for place in range(length)] for row in lengths]
    return pad_right(rows, 0)[0]


def packed_hidden(trunk: nn.Module, ids: TokenIds, positions: TokenIds) -> Tensor:
    """Hidden states (rows, sequence, hidden) of packed rows; ids under padding must be legal."""
    output = trunk(input_ids=ids, attention_mask=None, position_ids=positions, use_cache=False)
    return cast(Tensor, output.last_hidden_state)


@torch.no_grad()
def check_packing(trunk: nn.Module, sequences: Sequence[Sequence[int]]) -> None:
    """Compare a few sequences in one row with each of them alone.

    Raises:
        PackingError: a hidden state differs.
    """
    device = next(trunk.parameters()).device
    ids = torch.tensor([[token for row in sequences for token in row]], device=device)
    positions = packed_positions([[len(row) for row in sequences]]).to(device)
    packed = packed_hidden(trunk, ids, positions)[0].split([len(row) for row in sequences])
    for row, found in zip(sequences, packed, strict=True):
        alone = trunk(input_ids=torch.tensor([row], device=device), use_cache=False)
        expected = alone.last_hidden_state[0]
        gap = (found - expected).abs().max().item()
        if not gap <= TOLERANCE * max(1.0, expected.abs().max().item()):
            raise PackingError(
                "self-check 'a packed sequence is what it is alone' failed: hidden states differ "
                f"by {gap:.2e}; this model does not support packing, set sft.packing to false"
            )
