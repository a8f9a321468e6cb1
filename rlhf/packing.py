"""Packing: several sequences in one row, none of which sees another (Krell et al. 2021).

Positions restart at 0 with every sequence, and attention stays within one: `transformers` derives
the block-diagonal mask from the positions where no attention mask is given. `check_packing` checks
that the model at hand does so, whatever its architecture.

So cost follows real tokens: of 16 responses whose lengths are ragged, padding is 40 % of a batch of
one row each, and 5 % of packed rows. On a CPU most families need none of it (`can_attend_within`):
all sequences stand in one row, and each attends by itself. Pairs (`rlhf.pair_rows`) share prompts,
so their rows have a mask everywhere.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlhf import tile_products
from rlhf.attention_masks import can_attend_within, mask_from_host
from rlhf.compute import sent
from rlhf.padding import pad_right
from rlhf.shapes import AttentionMask, TokenIds
from rlhf.stopping import SelfCheckError
from rlhf.trunk_passes import hidden_states, length_step

TOLERANCE = 1e-3
"""Largest difference, as a share of the largest hidden value, that packing may make (float32 gives
about 1e-6)."""

EQUAL_WORK = 1024
"""Width of a row at which attention costs as much as everything else in a block: about this in the
embedded model, 3,000 in one of 135 million parameters."""

LONGEST = 256
"""Tokens of a sequence that `check_packing` reads, from its end: enough to see, and little to
compute."""


class PackingError(SelfCheckError):
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


def tight_rows(
    lengths: Sequence[int], *, most: int | None = None, step: int = 1
) -> list[list[int]]:
    """Indices of sequences in rows of the width at which they cost least.

    A row that is wider leaves less room empty, but each of its tokens is compared with more others.
    None has more tokens than `most`, but where a sequence has by itself. Rows that will be padded
    to a multiple of `step` tokens have few widths, so that batches often have the same shape.
    """
    longest = max(lengths)
    found: list[tuple[int, list[list[int]]]] = []
    for eighths in range(8, 33) if step == 1 else (8, 16):
        room = _multiple(longest * eighths // 8, step)
        if found and most is not None and room > max(longest, most):
            break
        rows = pack(lengths, room)
        width = _multiple(max(sum(lengths[index] for index in row) for row in rows), step)
        found.append((len(rows) * width * (EQUAL_WORK + width), rows))
    return min(found, key=lambda costs: costs[0])[1]


def packed_rows(
    trunk: nn.Module, device: torch.device, lengths: Sequence[int], width: int | None = None
) -> list[list[int]]:
    """Indices of sequences in the rows in which the trunk computes them fastest there.

    Where each attends by itself, no row has padding: it is one of all sequences, or where they are
    of equal length one for each. Elsewhere a row has at most `width` tokens, where it is said.
    """
    if can_attend_within(trunk, device):
        every = range(len(lengths))
        return [list(every)] if len(set(lengths)) > 1 else [[index] for index in every]
    if width is not None:
        return pack(lengths, width)
    # Positions restart, but GPT-Neo cannot read a row of more tokens than it has positions.
    return tight_rows(lengths, most=_positions(trunk), step=length_step(trunk, device))


def _multiple(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


def packed_positions(lengths: Sequence[Sequence[int]]) -> TokenIds:
    """Positions (rows, longest) that restart with every sequence; each pad is one of its own."""
    rows = [[place for length in row for place in range(length)] for row in lengths]
    return pad_right(rows, 0)[0]


def packed_hidden(
    trunk: nn.Module, ids: TokenIds, positions: TokenIds, read: AttentionMask | None = None
) -> Tensor:
    """Hidden states (rows, sequence, hidden) of packed rows; ids under padding must be legal.

    The positions lie on the host, and so should what is `read` (all, where it is not said). Where
    products are made in tiles a single row gets one more sequence, of padding, up to a length that
    comes again; but not where the model has no positions for it.
    """
    read = torch.ones(positions.shape, dtype=torch.bool) if read is None else read
    tokens = ids.shape[1]
    if len(ids) == 1 and ids.device.type == "cpu" and tile_products.are_on():
        more = _padding(trunk, tokens)
        ids, read = (functional.pad(each, (0, more)) for each in (ids, read))
        positions = torch.cat([positions, torch.arange(more)[None]], dim=1)
    with mask_from_host(trunk, None, positions, ids.device) as visible:
        return hidden_states(trunk, ids, visible, positions, read=read)[:, :tokens]


def hidden_from_packed_rows(
    trunk: nn.Module, ids: TokenIds, mask: AttentionMask, read: AttentionMask
) -> Tensor:
    """Hidden states (batch, sequence, hidden) of a padded batch where `read` is True, 0 elsewhere.

    Its sequences go through the trunk in packed rows, so that no padding is computed but at their
    ends. Where both masks lie on the host no device is waited for.
    """
    mask, read = mask.cpu(), read.cpu()
    lengths = mask.sum(dim=1).tolist()
    rows = packed_rows(trunk, ids.device, lengths)
    places = mask.flatten().nonzero().squeeze(1).split(lengths)
    joined = [torch.cat([places[index] for index in row]) for row in rows]
    source = nn.utils.rnn.pad_sequence(joined, batch_first=True, padding_value=-1)
    positions = packed_positions([[lengths[index] for index in row] for row in rows])
    real = source >= 0
    chosen = read.flatten()[source] & real
    there = partial(sent, device=ids.device)
    packed_ids = torch.where(there(real), ids.flatten()[there(source)], 0)
    hidden = packed_hidden(trunk, packed_ids, positions, chosen)
    row, column = map(there, chosen.nonzero(as_tuple=True))
    everywhere = hidden.new_zeros(ids.numel(), hidden.shape[-1])
    found = everywhere.index_copy(0, there(source[chosen]), hidden[row, column])
    return found.view(*ids.shape, -1)


def _padding(trunk: nn.Module, tokens: int) -> int:
    """Tokens behind a single row on the CPU, where products are made in tiles."""
    more, most = -tokens % tile_products.ROWS_STEP, _positions(trunk)
    # GPT-Neo cannot read a row of more tokens than it has positions.
    read = more if can_attend_within(trunk, torch.device("cpu")) else tokens + more
    return more if most is None or read <= most else 0


def _positions(trunk: nn.Module) -> int | None:
    """How many tokens a sequence of the model may have; None where its config does not say."""
    config = getattr(trunk, "config", None)
    if config is None:
        return None
    return getattr(config.get_text_config(), "max_position_embeddings", None)


@torch.no_grad()
def check_packing(trunk: nn.Module, sequences: Sequence[Sequence[int]], *, setting: str) -> None:
    """Compare a few sequences in one row with each of them alone.

    Args:
        trunk: in float32.
        sequences: token ids; of long ones the end is read.
        setting: the key of params.yaml that asks for packing.

    Raises:
        PackingError: a hidden state differs.
    """
    device = next(trunk.parameters()).device
    share = (_positions(trunk) or LONGEST * len(sequences)) // len(sequences)
    sequences = [row[-min(LONGEST, share) :] for row in sequences]
    ids = torch.tensor([[token for row in sequences for token in row]], device=device)
    positions = packed_positions([[len(row) for row in sequences]])
    packed = packed_hidden(trunk, ids, positions)[0].split([len(row) for row in sequences])
    for row, found in zip(sequences, packed, strict=True):
        ids = torch.tensor([row], device=device)
        # Without a mask OPT adds up positions in floating point, which a GPU refuses.
        alone = trunk(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        expected = alone.last_hidden_state[0]
        gap = (found - expected).abs().max().item()
        if not gap <= TOLERANCE * max(1.0, expected.abs().max().item()):
            raise PackingError(
                "self-check 'a packed sequence is what it is alone' failed: hidden states differ "
                f"by {gap:.2e}; this model does not support packing, set {setting} to false"
            )
