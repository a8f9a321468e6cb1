"""Tensors divided among the processes: each holds consecutive rows, the last maybe fewer or none.

Weights are, where `rlhf.sharding` has divided a model, and with them their gradients and moments.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlhf.distributed import gather, rank, world


class Parts(NamedTuple):
    """A tensor as the processes of an earlier run had divided it."""

    rows: tuple[Tensor, ...]
    """Those of each process in turn."""


def is_divided(tensor: object) -> bool:
    """Whether this process holds a part of the tensor only."""
    return isinstance(tensor, DTensor)


@torch.no_grad()
def part(tensor: Tensor) -> Tensor:
    """The rows of this process, in the same memory; of a tensor that is not divided all."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """All rows, in every process; each has to ask for it."""
    return gather(part(tensor)) if isinstance(tensor, DTensor) else tensor


def rows_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor the rows that this process holds of one of the same shape."""
    if not isinstance(like, DTensor):
        return tensor
    size = -(-len(tensor) // world())
    return tensor[rank() * size : (rank() + 1) * size]


def held_as(value: Tensor | Parts, like: Tensor) -> Tensor:
    """A saved tensor as `like` is held here and now, divided or not, among however many.

    A part is in memory of its own, and of as many parts only the process's own is touched.
    """
    if not isinstance(like, DTensor):
        return torch.cat(value.rows) if isinstance(value, Parts) else value
    return DTensor.from_local(
        _own_rows(value, like).to(part(like).device, copy=True),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _own_rows(value: Tensor | Parts, like: Tensor) -> Tensor:
    """This process's rows of a saved tensor, maybe in the memory of all of them."""
    if not isinstance(value, Parts):
        return rows_of(value, like)
    if len(value.rows) == world():
        return value.rows[rank()]
    return rows_of(torch.cat(value.rows), like)
