"""A CUDA graph that is none: what a step asks of torch is recorded, and asked for again.

As with a real one, recording computes nothing that lasts, repeating runs no Python, and numbers for
the host, shapes that depend on numbers, and data that come from the host or go there are refused in
a recording. Nothing here knows streams, or memory that was freed: a recording keeps all its own.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf.compute import plain_writes
from tests.pretended_device import ASKS, INDEXING, OnDevice, sends_strides

REFUSED = ASKS | {
    torch.ops.aten.lift_fresh.default,  # A tensor made of numbers of the host.
    torch.ops.aten._unique2.default,
    torch.ops.aten._unique.default,
    torch.ops.aten.unique_dim.default,
}


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any, bool]] = []
        """The last: whether CUDA's fastest algorithm was asked for, or the deterministic one."""
        self._before: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        masks = func in INDEXING and any(
            isinstance(each, Tensor) and each.dtype == torch.bool for each in args[1]
        )
        copies = func is torch.ops.aten._to_copy.default
        moves = copies and kwargs.get("device") not in (None, args[0].device)
        if func in REFUSED or masks or moves or sends_strides(func, args):
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[number] if number < len(args) else kwargs.get(argument.name)
                for tensor in tree_leaves(written):
                    if isinstance(tensor, Tensor):
                        storage = raw(tensor).untyped_storage()
                        self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        found = func(*args, **kwargs)
        plain = not torch.are_deterministic_algorithms_enabled()
        self.calls.append((func, args, kwargs, found, plain))
        return found

    def undo(self) -> None:
        """Give back what memory held before."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def repeat(self) -> None:
        for func, args, kwargs, before, plain in self.calls:
            with plain_writes() if plain else nullcontext():
                again = func(*args, **kwargs)
            for part, old, new in zip(
                func._schema.returns, _parts(before), _parts(again), strict=False
            ):
                if part.alias_info is None and isinstance(old, Tensor):
                    raw(old).copy_(raw(new))


def raw(tensor: Tensor) -> Tensor:
    """The tensor of the CPU behind one on the pretended device."""
    return tensor.inner if isinstance(tensor, OnDevice) else tensor


def _parts(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def record(step: Callable[[], None]) -> Callable[[], None]:
    """Run the step, record it, and give what repeats it (`rlhf.cuda_graphs.record`)."""
    step()
    return capture(step)


def capture(step: Callable[[], None], pool: object = None) -> Callable[[], None]:
    """Record the step, and give what repeats it (`rlhf.cuda_graphs.capture`)."""
    recording = _Recording()
    with recording:
        step()
    recording.undo()
    return recording.repeat
