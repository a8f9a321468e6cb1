"""Attention of a decoding step by a kernel of our own, for GPUs and keys in bfloat16.

In a step every row has one query, and what counts is how fast its keys and values are read. torch's
kernels are made for many queries: on an H200 (2026-11-27) the one that it chooses took 44 µs for
what the memory there gives in 12 (64 rows, 96 positions, 32 heads of 64). They also take the mask
as numbers, to be added, and read what it hides. Here one program for each row and each key head
reads keys and values once, of those blocks of positions in which the row sees any.

To be imported where triton is, which torch brings with CUDA.
"""

import math
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "rlhf_decoding_gpu"

BLOCK = 64
"""Positions that a program reads at a time."""

LEAST = 16
"""Rows and columns of the smallest matrices that a GPU multiplies."""


@triton.jit
@no_type_check
def _attend_program(
    queries,
    keys,
    values,
    seen,
    found,
    key_row,
    key_head,
    key_place,
    value_row,
    value_head,
    value_place,
    seen_row,
    length,
    scaling,
    HEADS: tl.constexpr,
    SHARING: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group, sizes, places = tl.arange(0, GROUP), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    keys += row * key_row + head * key_head
    values += row * value_row + head * value_head
    shared = (row * HEADS + head * SHARING + group)[:, None] * SIZE + sizes[None, :]
    exists = (group < SHARING)[:, None] & (sizes < SIZE)[None, :]
    query = tl.load(queries + shared, mask=exists, other=0.0).to(tl.bfloat16)
    most = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    mean = tl.zeros([GROUP, WIDTH], tl.float32)
    for start in range(0, length, BLOCK):
        at = start + places
        visible = tl.load(seen + row * seen_row + at, mask=at < length, other=0) != 0
        if tl.max(visible.to(tl.int32), axis=0) > 0:
            inside = visible[:, None] & (sizes < SIZE)[None, :]
            there = at[:, None] * key_place + sizes[None, :]
            key = tl.load(keys + there, mask=inside, other=0.0)
            products = tl.dot(query, tl.trans(key)) * scaling
            products = tl.where(visible[None, :], products, float("-inf"))
            higher = tl.maximum(most, tl.max(products, axis=1))
            kept = tl.exp(most - higher)
            shares = tl.exp(products - higher[:, None])
            there = at[:, None] * value_place + sizes[None, :]
            value = tl.load(values + there, mask=inside, other=0.0)
            mean = mean * kept[:, None] + tl.dot(shares.to(tl.bfloat16), value)
            total = total * kept + tl.sum(shares, axis=1)
            most = higher
    tl.store(found + shared, (mean / total[:, None]).to(tl.bfloat16), mask=exists)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Softmax of the scaled products of one query with the keys that it sees, times their values.

    Args:
        module: the layer, for several queries or keys in another precision than bfloat16.
        query: (rows, heads, 1, size), rounded to bfloat16.
        key: (rows, key heads, positions, size); several heads may share one of these.
        value: the same shape.
        attention_mask: (rows, 1, 1, positions), True where a key is seen, somewhere in each row.
        scaling: of the products.
        kwargs: what transformers gives besides; nothing of it matters to one query.

    Returns:
        (rows, 1, heads, size) in bfloat16, and no weights.
    """
    if key.dtype != torch.bfloat16 or query.shape[2] > 1:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return plain
    rows, heads, _, size = query.shape
    key_heads = key.shape[1]
    found = torch.empty(rows, 1, heads, size, dtype=torch.bfloat16, device=query.device)
    _attend_program[rows, key_heads](
        query.contiguous(),
        key,
        value,
        attention_mask.view(torch.uint8),
        found,
        *key.stride()[:3],
        *value.stride()[:3],
        attention_mask.stride(0),
        key.shape[2],
        scaling,
        HEADS=heads,
        SHARING=heads // key_heads,
        SIZE=size,
        GROUP=max(LEAST, triton.next_power_of_2(heads // key_heads)),
        WIDTH=max(LEAST, triton.next_power_of_2(size)),
        BLOCK=BLOCK,
    )
    return found, None


def gap_to_torch(heads: int, key_heads: int, size: int) -> float:
    """How far results are from those of torch's kernel in float32, as a share of their norm.

    For two rows that see different positions of two blocks and a half.
    """

    def numbers(*shape: int, step: float) -> Tensor:
        count = torch.arange(math.prod(shape), device="cuda", dtype=torch.float64)
        return (count * step).sin().view(shape).bfloat16()

    positions = 5 * BLOCK // 2
    query = numbers(2, heads, 1, size, step=1.7)
    key, value = (numbers(2, key_heads, positions, size, step=step) for step in (0.9, 2.3))
    places = torch.arange(positions, device="cuda")
    seen = torch.stack([places % 3 > 0, (places > BLOCK) & (places < 2 * BLOCK)])[:, None, None]
    found, _ = attend(torch.nn.Identity(), query, key, value, seen, 0.3)
    with torch.autocast("cuda", enabled=False):
        expected = functional.scaled_dot_product_attention(
            query.float(),
            key.float(),
            value.float(),
            attn_mask=seen,
            scale=0.3,
            enable_gqa=heads != key_heads,
        ).transpose(1, 2)
    return float((found.float() - expected).norm() / expected.norm())


AttentionInterface.register(NAME, attend)
