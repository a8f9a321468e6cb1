"""Kernels of ours in the place of torch's, for tensors on a CPU."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

_library: torch.library.Library | None = None
_replaced: set[str] = set()


def replace_kernels(kernels: Mapping[str, Callable[..., Any]]) -> None:
    """Let torch's kernels give way to these, by the names of their operators, from now on.

    An operator that has been replaced already keeps its first kernel.
    """
    global _library
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch says that a kernel was replaced, which is the intention.
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name in kernels.keys() - _replaced:
            _library.impl(name, kernels[name], "CPU", allow_override=True)
            _replaced.add(name)
