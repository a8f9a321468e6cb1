"""Weights laid out for a product with few rows, while responses are sampled on a CPU.

MKL copies a weight into blocks at every product. For the thousands of rows of a training step that
is nothing, for the 64 of a decoding step a quarter of the time, for the single one of a dialogue
two thirds. oneDNN computes with weights that were copied once. Every row gets the same bits however
many there are, with one thread or two; they are not MKL's, so only native bits have them.

With AVX-512 (Zen 5, one thread) a product of 64 rows with a weight of SmolLM2-135M takes 0.75 of
MKL's time, of 8 rows 0.45 and of one 0.35; that of weights below SMALLEST is no faster. With AVX2
(Zen 3) MKL is faster by a tenth to a fifth, but for the largest, the heads of real models.

Where products are made in tiles (`rlhf.tile_products`), the copy of a layer below the head is
bfloat16, half of what a step reads, and so is its result before it is float32 again, as in
autocast. It takes 0.3 of the time of float32 for 64 rows, 0.7 for three; from some 40 rows on its
bits are those of the number of threads. Logits are not rounded.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf import bits, tile_products
from rlhf.replaced_forwards import Forward, replaced_forwards

SMALLEST: Mapping[str, int] = {"AVX2": 2**24, "AVX512": 2**17}
"""Numbers in a weight that is worth it, by the processor's vectors; with others none is."""


@contextlib.contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """Let the model's larger linear layers compute so inside this context, where it is faster.

    Their weights must not change there: each exists twice. A layer that computes so already, in a
    context around this one, is left alone.
    """
    smallest = _smallest() if bits.in_effect() == "native" else None
    in_tiles, head = tile_products.are_on(), _head(model)

    def forward_of(layer: nn.Module) -> Forward | None:
        if smallest is None or not _is_worth_it(layer, smallest):
            return None
        if not in_tiles:
            return _product(cast(nn.Linear, layer))
        return None if layer is head else _product_in_tiles(cast(nn.Linear, layer))

    with replaced_forwards(model, forward_of):
        yield


def _smallest() -> int | None:
    """Of `SMALLEST` this processor's; None where this torch has no oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return None
    if tile_products.are_on():
        return tile_products.SMALLEST
    return SMALLEST.get(torch.backends.cpu.get_cpu_capability())


def _is_worth_it(layer: nn.Module, smallest: int) -> bool:
    """Whether it is a plain layer with a large weight on the CPU in float32."""
    if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
        return False
    weight = layer.weight
    return (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= smallest
    )


def _head(model: nn.Module) -> nn.Module | None:
    """What gives the logits of a language model; None where the model is none."""
    return model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None


def _product_in_tiles(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The same with a weight in bfloat16."""
    plain = layer.forward
    packed: Tensor | None = None
    bias = None if layer.bias is None else layer.bias.detach().bfloat16()

    def forward(rows: Tensor) -> Tensor:
        nonlocal packed
        if rows.dtype != torch.float32 or torch.is_grad_enabled():
            return plain(rows)
        if packed is None:
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach().bfloat16())
        lower: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows.bfloat16(), packed, bias, "none", [], ""
        )
        return lower.float()

    return forward


def _product(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The layer's forward pass, without gradients."""
    plain, bias = layer.forward, layer.bias
    packed: Tensor | None = None

    def forward(rows: Tensor) -> Tensor:
        nonlocal packed
        lower = rows.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
        if lower or torch.is_grad_enabled():
            return plain(rows)
        if packed is None:
            packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
        found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
        return found

    return forward
