"""Weights laid out for a product with few rows, while responses are sampled on a CPU.

MKL copies a weight into blocks at every product. For the thousands of rows of a training step that
is nothing, for the 64 of a decoding step a quarter of the time, for the single one of a dialogue
two thirds. oneDNN computes with weights that were copied once. Every row gets the same bits however
many there are, with one thread or two; they are not MKL's, so only native bits have them.

With AVX-512 (Zen 5, one thread) a product of 64 rows with a weight of SmolLM2-135M takes 0.75 of
MKL's time, of 8 rows 0.45 and of one 0.35; that of weights below SMALLEST is no faster. With AVX2
(Zen 3) MKL is faster by a tenth to a fifth, but for the largest, the heads of real models.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from rlhf import bits
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

    def forward_of(layer: nn.Module) -> Forward | None:
        worth_it = smallest is not None and _is_worth_it(layer, smallest)
        return _product(cast(nn.Linear, layer)) if worth_it else None

    with replaced_forwards(model, forward_of):
        yield


def _smallest() -> int | None:
    """Of `SMALLEST` this processor's; None where this torch has no oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return None
    return SMALLEST.get(torch.backends.cpu.get_cpu_capability())


def _is_worth_it(layer: nn.Module, smallest: int) -> bool:
    """Whether it is a plain layer with a large weight on the CPU in float32."""
    if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
        return False
    weight = layer.weight
    return (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= smallest
    )


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
