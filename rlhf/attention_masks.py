"""What each token of a sequence sees, worked out on the host.

transformers asks the mask whether it is True everywhere, and positions whether they restart: with
those on a GPU, the host waits for it in every forward pass. Here they are asked where the host has
them, and the model gets a mask that it takes as it is, the same that it would have made.
"""

import contextlib
from collections.abc import Iterator

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


def takes_any_mask(trunk: nn.Module) -> bool:
    """Whether it takes a mask (rows, 1, queries, keys) as it is, and looks back without a limit."""
    config = getattr(trunk, "config", None)
    return (
        getattr(config, "model_type", None) in TAKE_ANY_MASK
        and getattr(config, "_attn_implementation", None) == "sdpa"
        and getattr(config, "sliding_window", None) is None
    )


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


def _causal(like: Tensor) -> Tensor:
    places = torch.arange(like.shape[1], device=like.device)
    return places[:, None] >= places


AttentionInterface.register(UNMASKED, sdpa_attention_forward)
