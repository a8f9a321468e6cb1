"""A model in training, whole in every process or divided among them.

Divided, a process holds its part of the weights, and so of the gradients and of the optimiser's
moments: of AdamW 16 bytes for a weight over the number of processes, in place of 16. To compute a
layer, all put its weights together, use them and let them go; the backward pass does so once more,
adds up the gradients and leaves each process its part. torch's FSDP2 does it (`fully_shard`).

The embeddings, what else is outside the layers, and the gradients of these are whole from the
beginning of a forward pass to the end of its backward pass. All processes wait for each other in
every layer, so each has to make as many passes as the others.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from rlhf.compute import Compute
from rlhf.distributed import Rows, gather_parts, part_of_total, share, world
from rlhf.divided import whole
from rlhf.frozen import linear_layers
from rlhf.gradient_sums import added_in_place
from rlhf.lower_gradient_sums import added_in_float32
from rlhf.recomputed_layers import stacked_layers
from rlhf.shorter_backward import shorter_backward

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MicroBatch(Generic[Rows]):
    """Rows whose gradient is computed at a time."""

    rows: Rows
    counts: bool
    """Whether they are this process's; else it only keeps pace with the others."""

    def counted(self, value: Tensor) -> Tensor:
        """A loss or metric of these rows, or nothing of it."""
        return value if self.counts else value * 0


class Held:
    """How the processes hold a model in training, and what follows for whoever computes with it."""

    def __init__(self, model: nn.Module, *, divided: bool = False):
        """Keep the model as it is, or divide its weights; every process divides the same."""
        self.model = model
        self._root: _Root | None = None
        if divided:
            self._without_weights = _without_weights(model)
            self._root = _divide(model)

    def compute(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, in which every part of the model may be used; with gradients.

        What needs gradients must be in the result: tensors, alone or in tuples and dicts.
        """
        return work() if self._root is None else cast(Result, self._root(work))

    def micro_batches(self, rows: Rows, size: int) -> Iterator[MicroBatch[Rows]]:
        """This process's rows of a batch in parts; of a divided model all have as many parts.

        Where a process has used up its rows it gets one that another computes, for nothing.
        """
        ours = share(rows)
        most = len(ours) if self._root is None else -(-len(rows) // world())
        for start in range(0, most, size):
            counts = start < len(ours)
            chosen = ours[start : start + size] if counts else rows[:1]
            yield MicroBatch(cast(Rows, chosen), counts)

    @contextlib.contextmanager
    def step(self, compute: Compute) -> Iterator[None]:
        """Around the micro-batches of a step: its weights are cast once for all of them.

        Divided weights are put together for a layer and let go; a cast that stayed would be whole.
        Gradients of whole weights are added in place (`rlhf.gradient_sums`, on a GPU
        `rlhf.lower_gradient_sums`), and on a CPU norms are differentiated in fewer steps
        (`rlhf.shorter_backward`).
        """
        if self._root is not None:
            yield
            return
        in_place = added_in_float32 if compute.casts else added_in_place
        with compute.keeping_casts(), in_place(self.model), shorter_backward(self.model):
            yield

    def whole(self, compute: Compute | None = None) -> Any:
        """The model with all weights; of a divided one a copy, which every process has to ask for.

        For `compute` the copy has the weights that are computed in a lower precision in that one.
        """
        if self._root is None:
            return self.model
        lower = compute is not None and compute.casts
        cast_down = {
            weight
            for _, layer in (linear_layers(self._without_weights) if lower else ())
            for weight in layer.parameters(recurse=False)
        }
        memo: dict[int, Any] = {}
        places = self._without_weights.parameters()
        for place, weight in zip(places, self.model.parameters(), strict=True):
            found = whole(weight)
            if place in cast_down:
                found = found.to(torch.bfloat16)
            memo[id(place)] = nn.Parameter(found, requires_grad=weight.requires_grad)
        return copy.deepcopy(self._without_weights, memo)


class _Root(nn.Module):
    """What FSDP sees called: it divides whatever the model has outside its layers.

    Our loops call a model's trunk, then its head: FSDP would know nothing of weights that both use.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class _AllGather:
    """How FSDP puts weights together: the death of another process is an error that says so."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, async_op: bool = False
    ) -> None:
        del group, async_op
        gather_parts(input_tensor, output_tensor)


class _ReduceScatter(_AllGather):
    """How FSDP adds up gradients: in the order of the processes, whatever carries the numbers."""

    def __call__(  # type: ignore[override]
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: object,
        op: object,
        async_op: bool = False,
    ) -> None:
        del group, op, async_op
        output_tensor.copy_(part_of_total(input_tensor))


def _without_weights(model: nn.Module) -> nn.Module:
    """A copy with an empty tensor in place of each weight; tied ones have one in common."""
    # A layer that was made to recompute would call the one that it is a copy of.
    assert not any("forward" in part.__dict__ for part in model.modules())
    memo = {
        id(weight): nn.Parameter(weight.detach().new_empty(0), requires_grad=False)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, memo)


def _divide(model: nn.Module) -> _Root:
    root = _Root(model)
    device = next(model.parameters()).device
    everyone = dist.group.WORLD
    assert everyone is not None
    mesh = DeviceMesh.from_group(everyone, device.type)
    # Typed for classes that torch has in a private module.
    together: tuple[Any, Any] = _AllGather(), _ReduceScatter()
    for unit in [*stacked_layers(model), root]:
        fully_shard(unit, mesh=mesh)
        assert isinstance(unit, FSDPModule)
        unit.set_custom_all_gather(together[0])
        unit.set_custom_reduce_scatter(together[1])
        # Every loss is divided by what the whole step holds, so gradients add up to the sum.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    return root
