"""Passes of a trunk that a GPU repeats by itself: a CUDA graph of one for each shape of its input.

A forward and a backward pass of a layer ask a GPU for some hundred and fifty small kernels. On an
H100 (2026-11-26) asking took ten times as long as computing, with 135M parameters and 1,500 tokens.
A shape that comes a second time is recorded: a pass in which nothing is trained as one graph, one
in training as two, of the forward pass and of the backward pass, which adds to the gradients of the
weights where they lie. The kernels are the same, and so are the bits.

So that few shapes come, rows are padded to a multiple of LENGTH_STEP tokens. What a batch holds
besides (the heads, the losses) is asked for as ever, and a trunk whose Python may do something else
the next time is not recorded: one with adapters, which are switched off and on, one whose weights
are divided, or of another family than `FAMILIES`.
"""

import warnings
import weakref
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlhf import cuda_graphs
from rlhf.attention_masks import UNMASKED
from rlhf.divided import is_divided
from rlhf.pass_recordings import (
    GPU,
    Gradients,
    Inputs,
    Pass,
    Recorder,
    TrainingPass,
    Unfinished,
    give_back_pools,
    no_kept_casts,
    run,
)
from rlhf.positions import change_with_length
from rlhf.shapes import SequenceVisible, TokenIds

FAMILIES = frozenset({"llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3"})
"""`model_type` of the models whose trunk does the same with embeddings as with the ids of them."""

LENGTH_STEP = 32
"""Rows have a multiple of so many tokens."""

MOST_SHAPES = 16
"""Recordings of a trunk."""

LONG_UNUSED = 64
"""After so many passes of other shapes a recording makes room for one of another shape."""


def recorder(trunk: nn.Module, device: torch.device) -> Recorder | None:
    """How passes of the trunk are recorded there; None where they are not."""
    if device.type != "cuda" or cuda_graphs.switched_off():
        return None
    return GPU if _trunk(trunk).is_known else None


def recorded_hidden(
    recorder: Recorder,
    trunk: nn.Module,
    ids: TokenIds,
    visible: SequenceVisible | None,
    positions: TokenIds,
) -> Tensor:
    """Hidden states (rows, tokens, hidden) of the ids, recorded or not: the bits are the same."""
    length = ids.shape[1]
    ids, visible, positions = _lengthened(ids, visible, positions)
    inputs = Inputs(cast(Any, trunk).get_input_embeddings()(ids), positions, visible)
    return _trunk(trunk).hidden(recorder, trunk, inputs)[:, :length]


def _lengthened(
    ids: Tensor, visible: Tensor | None, positions: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Rows with tokens behind them that see themselves, and that nobody sees."""
    length = ids.shape[1]
    missing = -length % LENGTH_STEP
    if missing == 0:
        return ids, visible, positions
    ids, positions = (functional.pad(each, (0, missing)) for each in (ids, positions))
    if visible is not None:
        visible = functional.pad(visible, (0, missing, 0, missing))
        visible.diagonal(dim1=2, dim2=3)[..., length:] = True
    return ids, visible, positions


class _Shape(NamedTuple):
    """What two passes have in common of which one can be the other's recording."""

    embeddings: torch.Size
    unmasked: bool
    autocast: bool
    training: bool


class _Trunk:
    """What is recorded of one trunk."""

    is_full = False
    """Whether the GPU once had no room for a recording, of whatever trunk."""

    def __init__(self, trunk: nn.Module):
        self._slots = [
            (tensors, name)
            for module in trunk.modules()
            for tensors in (module._parameters, module._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
        self._places = self._found()
        self.is_known = _is_known(trunk)
        self._gradients: Gradients | None = None
        self._seen: set[_Shape] = set()
        self._passes: dict[_Shape, Pass | TrainingPass] = {}
        self._used: dict[_Shape, int] = {}
        """Which pass of the trunk, counted, was the last of a recording."""
        self._count = 0

    def forget(self) -> None:
        """Hold no recording, and no gradients for one; weights keep those that they have."""
        self._passes.clear()
        self._gradients = None

    def is_as_it_was(self) -> bool:
        """Whether the same tensors lie where they did, and the same ones are trained."""
        return self._found() == self._places

    def _found(self) -> list[object]:
        tensors = (cast(Tensor, slots[name]) for slots, name in self._slots)
        return [(id(each), each.data_ptr(), each.requires_grad) for each in tensors]

    def hidden(self, recorder: Recorder, trunk: nn.Module, inputs: Inputs) -> Tensor:
        """The hidden states, by a recording where the shape has been seen before."""
        self._count += 1
        training = torch.is_grad_enabled() and inputs.embeddings.requires_grad
        autocast = torch.is_autocast_enabled(inputs.embeddings.device.type)
        shape = _Shape(inputs.embeddings.shape, inputs.visible is None, autocast, training)
        if training != torch.is_grad_enabled() or (training and Unfinished.exists()):
            return run(trunk, inputs)
        if shape not in self._passes and shape in self._seen and self._has_room():
            self._record(recorder, trunk, inputs, shape)
        self._seen.add(shape)
        if shape not in self._passes:
            return run(trunk, inputs)
        self._used[shape] = self._count
        return self._passes[shape](inputs)

    def _has_room(self) -> bool:
        """Whether one more may be recorded, if need be in place of one that is not used any more.

        Shapes that come in turn, more than there is room for, would else be recorded every time.
        """
        if _Trunk.is_full:
            return False
        if len(self._passes) < MOST_SHAPES:
            return True
        oldest = min(self._passes, key=self._used.__getitem__)
        if self._count - self._used[oldest] <= LONG_UNUSED:
            return False
        del self._passes[oldest]
        return True

    def _record(self, recorder: Recorder, trunk: nn.Module, inputs: Inputs, shape: _Shape) -> None:
        with no_kept_casts():
            try:
                if not shape.training:
                    self._passes[shape] = Pass(recorder, trunk, inputs)
                    return
                if self._gradients is None:
                    self._gradients = Gradients(trunk)
                made = TrainingPass(recorder, trunk, inputs, self._gradients)
            except torch.OutOfMemoryError:
                rows, tokens, _ = shape.embeddings
                warnings.warn(
                    f"the GPU has no room to record a pass of {rows} x {tokens} tokens, so none is "
                    "recorded any more; passes take longer, with the same result. Smaller "
                    "micro-batches may help",
                    stacklevel=2,
                )
            else:
                self._passes[shape] = made
                return
        # Here nobody holds what was being recorded any more.
        _give_up(recorder)


_trunks: "weakref.WeakKeyDictionary[nn.Module, _Trunk]" = weakref.WeakKeyDictionary()


def _trunk(trunk: nn.Module) -> _Trunk:
    """What is recorded of the trunk, as long as its weights stay where they are."""
    found = _trunks.get(trunk)
    if found is None or not found.is_as_it_was():
        found = _trunks[trunk] = _Trunk(trunk)
    return found


def _give_up(recorder: Recorder) -> None:
    """Record no more, and leave the memory of all recordings to plain passes, which need less."""
    _Trunk.is_full = True
    for trunk in _trunks.values():
        trunk.forget()
    give_back_pools(recorder)


def _is_known(trunk: nn.Module) -> bool:
    config = getattr(trunk, "config", None)
    return (
        getattr(config, "model_type", None) in FAMILIES
        and getattr(config, "_attn_implementation", None) in ("sdpa", UNMASKED)
        and getattr(config, "sliding_window", None) is None
        and not change_with_length(trunk)
        and not any("lora_" in name or is_divided(w) for name, w in trunk.named_parameters())
    )
