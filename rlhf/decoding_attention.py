"""Attention of a decoding step, which has one query a row, by what reads keys and values fastest.

On a CPU that is two batched products: torch's kernel copies keys and values into blocks first, the
products read them where they are. With 64 rows of a model of 4 million parameters and AVX-512 a
rollout takes 0.50 s of a processor in place of 0.60 (Zen 5). The sums are in another order, so only
native bits have it: portable ones stay as recorded.

On a GPU, where steps are recorded and keys are bfloat16, it is a kernel of our own
(`rlhf.gpu_attention`).
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rlhf import bits
from rlhf.attention_masks import UNMASKED, attending_as, takes_any_mask

NAME = "rlhf_decoding"

LARGEST_GAP = 0.02
"""Of our kernel's results from torch's, as a share of these: both have 8 bits."""


@contextlib.contextmanager
def decoding_attention(lm: PreTrainedModel, seen: Tensor, *, padded: bool) -> Iterator[Any]:
    """Give what to call the model with, for one query a row, as its attention mask.

    transformers asks the mask at every step whether it is True everywhere. Where it can be told,
    it asks nothing, and on a GPU the host does not wait.

    Args:
        lm: attends by two products inside this context where that is known to be faster.
        seen: (rows, positions), True at the tokens that the query sees.
        padded: whether it may be False anywhere.
    """
    on_cpu = seen.device.type == "cpu"
    if not takes_any_mask(lm.base_model):
        yield seen.long()
    elif on_cpu and bits.in_effect() == "native":
        with attending_as(lm.config, NAME):
            yield seen[:, None, None] if padded else None
    elif not padded:
        with attending_as(lm.config, UNMASKED):
            yield None
    else:
        # On a CPU torch's kernel gives other bits with a mask that is True everywhere than without.
        yield seen.long() if on_cpu else seen[:, None, None]


def recorded_attention(lm: PreTrainedModel, keys: Tensor) -> str | None:
    """The name of our kernel for steps that are recorded; None: they attend by torch's.

    Ours skips what the mask hides, so it may be given all positions that there is room for. Keys
    are (rows, key heads, positions, size).
    """
    if keys.device.type != "cuda" or keys.dtype != torch.bfloat16:
        return None
    return _kernel_for(lm.config.num_attention_heads, keys.shape[1], keys.shape[3])


@functools.cache
def _kernel_for(heads: int, key_heads: int, size: int) -> str | None:
    """The kernel's name, once it has been compiled here for so many heads, and was right."""
    try:
        from rlhf import gpu_attention  # noqa: PLC0415 (needs triton)

        gap = gpu_attention.gap_to_torch(heads, key_heads, size)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Whatever a compiler and a driver may lack.
        reason = str(error)
    else:
        if gap <= LARGEST_GAP:
            return gpu_attention.NAME
        reason = f"its results are {gap:.3f} away from torch's"
    warnings.warn(
        "decoding attends by torch's kernel, which takes longer: ours does not work here, "
        f"{reason}",
        stacklevel=2,
    )
    return None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Softmax of the scaled products of one query with all keys, times the values.

    Args:
        module: the layer, for whatever has several queries or another type than float32.
        query: (rows, heads, queries, size).
        key: (rows, key heads, positions, size); several heads may share one of these.
        value: the same shape.
        attention_mask: (rows, 1, queries, positions), True where a key is seen; None: all are.
        scaling: of the products.
        kwargs: what transformers gives besides; nothing of it matters to one query.

    Returns:
        (rows, queries, heads, size), and no weights.
    """
    rows, heads, queries, size = query.shape
    if queries > 1 or query.dtype != torch.float32 or key.dtype != torch.float32:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return plain
    shared = query.view(rows, key.shape[1], -1, size) * scaling
    products = shared @ key.transpose(-1, -2)
    if attention_mask is not None:
        # Minus infinity would make the padding of a prompt that sees nothing NaN.
        products = products.masked_fill_(~attention_mask, torch.finfo(products.dtype).min)
    found = products.softmax(dim=-1) @ value
    return found.reshape(rows, 1, heads, size), None


AttentionInterface.register(NAME, attend)
