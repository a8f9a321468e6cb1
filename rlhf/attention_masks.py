"""What each token of a sequence sees, worked out on the host.

transformers asks the mask whether it is True everywhere, and positions whether they restart: with
those on a GPU, the host waits for it in every forward pass. Here they are asked where the host has
them, and the model gets a mask that it takes as it is, the same that it would have made.

On a CPU a single row of several sequences needs no mask: each sequence attends by itself, for the
square of its own length and not of the row's (`attend_within`).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rlhf.compute import sent
from rlhf.last_block import FAMILIES
from rlhf.shapes import AttentionMask, SequenceVisible, TokenIds

TAKE_ANY_MASK = FAMILIES | {"cohere", "gpt_neox", "opt", "phi", "phi3"}
"""`model_type` of the models that hand a mask (rows, 1, queries, keys) to their layers as it is."""

UNMASKED = "rlhf_unmasked"
"""Attention as ever, under a name for which transformers makes no mask, and asks nothing."""

WITHIN = "rlhf_within_sequences"
"""`attend_within`, whose mask is the lengths of the sequences."""


def takes_any_mask(trunk: nn.Module) -> bool:
    """Whether it takes a mask (rows, 1, queries, keys) as it is, and looks back without a limit."""
    config = getattr(trunk, "config", None)
    return (
        getattr(config, "model_type", None) in TAKE_ANY_MASK
        and getattr(config, "_attn_implementation", None) == "sdpa"
        and getattr(config, "sliding_window", None) is None
    )


def can_attend_within(trunk: nn.Module, device: torch.device) -> bool:
    """Whether sequences in one row, however many, cost no more attention there than apart."""
    return device.type == "cpu" and takes_any_mask(trunk)


@contextlib.contextmanager
def attending_as(config: PreTrainedConfig, name: str) -> Iterator[None]:
    """Inside it the model's layers attend by the function of that name among transformers'."""
    plain = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = plain


@contextlib.contextmanager
def mask_from_host(
    trunk: nn.Module, mask: AttentionMask | None, positions: TokenIds, device: torch.device
) -> Iterator[Tensor | None]:
    """Give what to call the trunk with, inside this context, as its attention mask.

    It says what each token sees by a padding mask, or without one by positions that restart; both
    lie on the host. Trunks of other families get the padding mask and find out by themselves.
    """
    if not takes_any_mask(trunk):
        yield None if mask is None else sent(mask.long(), device)
    elif bool(positions[:, 1:].all() if mask is None else mask.all()):
        # Every token sees all before it, for which torch has kernels that take no mask.
        with attending_as(trunk.config, UNMASKED):
            yield None
    elif mask is None and len(positions) == 1 and can_attend_within(trunk, device):
        with attending_as(trunk.config, WITHIN):
            yield _lengths(positions[0])
    elif mask is None:
        yield visible_in_packed(sent(positions, device))
    else:
        yield visible_in_padded(sent(mask, device))


def visible_in_padded(mask: AttentionMask) -> SequenceVisible:
    """Of each token the real ones up to itself."""
    return _causal(mask) & mask[:, None, None]


def visible_in_packed(positions: TokenIds) -> SequenceVisible:
    """Of each token those of its own sequence up to itself; a sequence starts at position 0."""
    number = (positions == 0).cumsum(dim=-1)
    return _causal(positions) & (number[:, None, :, None] == number[:, None, None, :])


def attend_within(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each sequence by itself, by torch's kernel for a sequence without a mask.

    Args:
        module: the layer.
        query: (1, heads, tokens, size), of several sequences one after the other.
        key: (1, key heads, tokens, size).
        value: the same shape.
        attention_mask: (1, 1, 1, sequences), the tokens of each.
        kwargs: what transformers gives besides.

    Returns:
        (1, tokens, heads, size), and no weights.
    """
    lengths = attention_mask.flatten().tolist()
    sequences = zip(*(states.split(lengths, dim=2) for states in (query, key, value)), strict=True)
    found = [sdpa_attention_forward(module, *states, None, **kwargs)[0] for states in sequences]
    return torch.cat(found, dim=1), None


def _lengths(positions: Tensor) -> Tensor:
    """Tokens of each sequence of a row, (1, 1, 1, sequences): the form of a mask."""
    starts = (positions == 0).nonzero().squeeze(1)
    return starts.diff(append=torch.tensor([len(positions)]))[None, None, None]


def _causal(like: Tensor) -> Tensor:
    places = torch.arange(like.shape[1], device=like.device)
    return places[:, None] >= places


AttentionInterface.register(UNMASKED, sdpa_attention_forward)
AttentionInterface.register(WITHIN, attend_within)
