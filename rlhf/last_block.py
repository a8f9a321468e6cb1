"""The last block of a trunk, computed only at the positions whose hidden states are read.

What a position gives in the last block reaches nothing but its own hidden state, except through
keys and values. So where a loss reads a few positions (the response's, or the one where a reward
model scores), queries, the attention's output and the MLP of the others are work for nothing: of
the embedded model's two blocks, 42 % of all products in reward training. Everything that is read,
and every gradient, is what it is without.

It concerns the families of `FAMILIES` only, whose blocks call exactly these parts once, and each
part on every position by itself; for any other model nothing is left out.
"""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional

from rlhf import tile_products
from rlhf.compute import sent
from rlhf.shapes import AttentionMask

FAMILIES = frozenset({"gemma", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3"})
"""`model_type` of the models whose blocks are known; a test compares each with its plain self."""

LEAST_ROWS = 32
"""A product of fewer rows may depend on the number of threads (MKL, even with STRICT): measured for
1 to 8 threads, 2 to 31 rows by widths of 32 to 1,536. So many there are at least, of zeros if need
be."""

PARTS = ("self_attn.q_proj", "self_attn.o_proj", "mlp")


@contextlib.contextmanager
def computed_only_at(trunk: nn.Module, read: AttentionMask) -> Iterator[None]:
    """Inside it the trunk's hidden states have a meaning only where `read` is True.

    Where `read` lies on the host no device is waited for.
    """
    read = read.cpu()
    if read.numel() >= LEAST_ROWS and bool(read.all()):
        # Nothing would be left out, and all of it copied twice in each direction.
        yield
        return
    parts = position_wise_parts(trunk)
    device = next(trunk.parameters()).device
    chosen = sent(read.flatten().nonzero().squeeze(1), device)
    step = tile_products.ROWS_STEP if tile_products.are_on() else 1

    def gather(part: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        del part
        rows = inputs[0].flatten(0, 1)[chosen]
        wanted = max(LEAST_ROWS, len(rows) + -len(rows) % step)
        return (functional.pad(rows, (0, 0, 0, wanted - len(rows)))[None],)

    def scatter(part: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        del part, inputs
        everywhere = output.new_zeros(read.numel(), output.shape[-1])
        return everywhere.index_copy(0, chosen, output[0, : len(chosen)]).view(*read.shape, -1)

    with contextlib.ExitStack() as hooks:
        for part in parts:
            hooks.callback(part.register_forward_pre_hook(gather).remove)
            hooks.callback(part.register_forward_hook(scatter).remove)
        yield


def position_wise_parts(trunk: nn.Module) -> list[nn.Module]:
    """The parts of the last block that treat each position by itself; none of unknown models."""
    config = getattr(trunk, "config", None)
    if getattr(config, "model_type", None) not in FAMILIES:
        return []
    layers = trunk.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    return [layers[-1].get_submodule(name) for name in PARTS]
