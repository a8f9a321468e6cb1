"""A device that is none: tensors on it are the CPU's, and every wait of the host for it is noted.

Stands for a GPU where there is none: on one, a number that the host wants, or a shape that depends
on numbers, makes it wait until all that it has asked for is done. So does what moves from the host
to the device, unless it says `non_blocking`. Operations on tensors of both are refused, as there.
Algorithms are deterministic, as in every stage: some of them move numbers to the device, too, and
for some operations there is none.
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
"""Its name; torch calls a device without numbers so, and lets autograd work there."""

ASKS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
}
"""Numbers for the host, and shapes that depend on numbers."""

INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
}

SCATTERED = {
    torch.ops.aten.scatter.src,
    torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default,
    torch.ops.aten.scatter_add_.default,
}

_waits: list[str] = []


class OnDevice(torch.Tensor):
    """A tensor that lies on the pretended device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=DEVICE,
        )  # fmt: skip
        made.inner = inner
        return made

    def tolist(self) -> Any:
        """By way of the host; torch has none for tensors of our own."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _look_for_both(func, args, kwargs)
        masks = func in INDEXING and any(
            isinstance(each, OnDevice) and each.dtype == torch.bool for each in args[1]
        )
        to_host = func is torch.ops.aten._to_copy.default and _names_host(kwargs)
        if func in ASKS or masks or to_host or sends_strides(func, args):
            _note()
        if _is_refused(func, args):
            raise RuntimeError(f"{func} does not have a deterministic implementation")
        inner_args, inner_kwargs = tree_map_only(OnDevice, lambda x: x.inner, (args, kwargs))
        if "device" in inner_kwargs:
            inner_kwargs["device"] = torch.device("cpu")
        found = func(*inner_args, **inner_kwargs)
        if to_host:
            return found
        wrapped = tree_map_only(Tensor, OnDevice, found)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _is_refused(func: Any, args: Any) -> bool:
    """Whether CUDA has no deterministic algorithm for it."""
    sums = func is torch.ops.aten.cumsum.default and args[0].is_floating_point()
    return sums and torch.are_deterministic_algorithms_enabled()


def sends_strides(func: Any, args: Any) -> bool:
    """Whether CUDA's deterministic algorithm needs strides, which the host sends it."""
    return func in SCATTERED and args[0].ndim > 1 and torch.are_deterministic_algorithms_enabled()


class _Made(TorchDispatchMode):
    """What is made on the device, or moved there, is one of its tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == DEVICE and not any(issubclass(t, OnDevice) for t in types):
            if func is torch.ops.aten._to_copy.default and not kwargs.get("non_blocking"):
                _note()
            kwargs = kwargs | {"device": torch.device("cpu")}
            return tree_map_only(Tensor, OnDevice, func(*args, **kwargs))
        return func(*args, **kwargs)


def _look_for_both(func: Any, args: Any, kwargs: Any) -> None:
    """Refuse tensors of host and device together; copies between them, and host indices, wait."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    host = [each for each in tensors if not isinstance(each, OnDevice)]
    if not host or len(host) == len(tensors):
        return
    if func is torch.ops.aten.copy_.default:
        if not (len(args) > 2 and args[2]):  # Its third argument is `non_blocking`.
            _note()
    elif func in INDEXING and isinstance(args[0], OnDevice):
        if any(isinstance(each, Tensor) and not isinstance(each, OnDevice) for each in args[1]):
            _note()
    elif any(each.ndim for each in host):  # Numbers may come from anywhere.
        raise RuntimeError(f"{func}: expected tensors of one device, found those of two")


def _note() -> None:
    _waits.append("".join(traceback.format_stack(limit=16)[:-2]))


def _tensor(data: Any, **kwargs: Any) -> Tensor:
    """`torch.tensor`, which asks no mode when it copies what it has made to the device."""
    device = kwargs.pop("device", None)
    made = _plain_tensor(data, **kwargs)
    return made if device is None else made.to(device)


_plain_tensor = torch.tensor


def _names_host(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cpu"


def move(model: nn.Module) -> None:
    """Put a model's weights and buffers on the device; tied ones stay tied."""
    moved: dict[int, Any] = {}
    for part in model.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                new = nn.Parameter(OnDevice(weight.detach()), requires_grad=weight.requires_grad)
                part._parameters[name] = moved.setdefault(id(weight), new)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = OnDevice(buffer)


@contextmanager
def deterministic() -> Iterator[None]:
    """Algorithms of a stage (`rlhf.compute.make_deterministic`)."""
    before = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    # CUDA's library of products looks for it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before)


@contextmanager
def waits() -> Iterator[list[str]]:
    """Inside, the device is there; where the host has waited for it, as stacks."""
    _waits.clear()
    torch.tensor = _tensor
    try:
        with _Made(), deterministic():
            yield _waits
    finally:
        torch.tensor = _plain_tensor
