"""A pass of a trunk over whole sequences: what is not read is left out, or a GPU repeats it."""

from typing import cast

import torch
from torch import Tensor, nn

from rlhf.compute import sent
from rlhf.last_block import computed_only_at
from rlhf.recorded_passes import LENGTH_STEP, recorded_hidden, recorder
from rlhf.shapes import AttentionMask, TokenIds


def length_step(trunk: nn.Module, device: torch.device) -> int:
    """Rows are padded to a multiple of so many tokens there, whoever asks."""
    return 1 if recorder(trunk, device) is None else LENGTH_STEP


def hidden_states(
    trunk: nn.Module,
    ids: TokenIds,
    attention_mask: Tensor | None,
    positions: TokenIds,
    *,
    read: AttentionMask,
) -> Tensor:
    """Hidden states (rows, tokens, hidden), which have a meaning where `read` is True.

    Args:
        trunk: of a causal model.
        ids: legal ones, under padding too.
        attention_mask: of `rlhf.attention_masks.mask_from_host`, in whose context this is called.
        positions: on the host or on the device.
        read: the same; on the host it makes no device wait.
    """
    positions = sent(positions, ids.device)
    if (how := recorder(trunk, ids.device)) is not None:
        return recorded_hidden(how, trunk, ids, attention_mask, positions)
    with computed_only_at(trunk, read):
        output = trunk(
            input_ids=ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        )
    return cast(Tensor, output.last_hidden_state)
