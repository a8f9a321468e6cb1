"""Where and how precisely tensors are computed: device, threads, precision."""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlhf import head_products, thread_order, tile_products
from rlhf.bits import require_kernels

Precision = Literal["float32", "bfloat16"]

HOST = torch.device("cpu")
"""Where models are loaded, and cast before they go to their device."""

KEPT_BYTES = 128 * 2**20
"""Memory that was freed stays with the process up to here (`keep_freed_memory`)."""

HEAP_BYTES = 32 * 2**20
"""There, smaller tensors share one region of memory; larger ones come and go one by one."""

PASSING_BYTES = 2**20
"""The same where weights are divided (`give_back_freed_memory`)."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""glibc's names for them, in `mallopt`."""

_NEVER = -1
"""As a threshold it gives nothing back."""


@dataclass(frozen=True)
class Compute:
    """A device and the precision of forward passes below the heads; what is trained is float32."""

    device: torch.device
    precision: Precision

    @property
    def in_tiles(self) -> bool:
        """Whether bfloat16 is that of the factors alone: all tensors are float32 then, too."""
        lower = self.precision == "bfloat16" and self.device.type == "cpu"
        return lower and tile_products.exist()

    @property
    def casts(self) -> bool:
        """Whether tensors of a lower precision exist: weights are cast, results are rounded."""
        return self.precision == "bfloat16" and not self.in_tiles

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Forward passes below run in the chosen precision (no-op for float32)."""
        if self.in_tiles:
            return tile_products.tile_products()
        if not self.casts:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def keeping_casts(self) -> Iterator[None]:
        """Inside it `autocast` casts a trained weight once, however often it is entered.

        For the micro-batches of a step, between which no weight changes. By itself it computes
        nothing in a lower precision, backward passes above all: torch drops the casts when the
        outermost of its contexts is left, and this is one that is switched off.
        """
        if not self.casts:
            yield
            return
        lower = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=False)
        with head_products.keeping_casts(), lower:
            yield


def precision_at_hand(device: torch.device) -> torch.dtype:
    """Of the factors of a product in the context that surrounds this call."""
    kind = device.type
    if kind == "cpu" and tile_products.are_on():
        return torch.bfloat16
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


@contextlib.contextmanager
def in_float32(device: torch.device) -> Iterator[None]:
    """Inside it products of float32 tensors have float32 factors: of values, scores and rewards."""
    with outside_autocast(device), tile_products.no_tiles():
        yield


def outside_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Inside it products of float32 tensors are float32, whatever the precision around it.

    For logits: bfloat16 has 8 bits, so a logit of 62 would be a multiple of 0.25.
    """
    if not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; where it comes from the host, the host does not wait for that.

    From memory that is not pinned CUDA copies a larger tensor only after all that it was asked for.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device of that name; `auto` is the first GPU where there is one, else the CPU.

    Raises:
        ValueError: `cuda` asked for and absent.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("run.device is 'cuda', but torch sees no GPU; use 'auto' or 'cpu'")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def make_deterministic(threads: int) -> None:
    """Fix the number of threads and refuse kernels whose result depends on scheduling.

    Up to 8 threads the results do not depend on their number either.

    Numbers below 1.2e-38 become 0: a CPU computes with them in microcode, and a sharp model's
    attention is full of them, which made reward-model training four times as long. Each thread has
    a setting of its own and inherits it when it starts, so this comes before the first product.
    """
    torch.set_flush_denormal(True)
    require_kernels()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    thread_order.install()
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory with NaN, to expose reads of it, takes 4 % of the time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def plain_writes() -> Iterator[None]:
    """Let CUDA write at an index as it comes; to be asked where no place is written twice.

    Its deterministic algorithms sort all indices first. For `scatter` and `scatter_add_` of several
    axes they also take numbers from the host, which waits for that, and which a recording refuses.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)


def keep_freed_memory() -> None:
    """Let tensors of the next step use the memory of the last one's, where the C library is glibc.

    By default glibc gives a step's tensors back and takes them again in the next, page by page.
    At most KEPT_BYTES more stay with the process than its tensors need.
    """
    _set_heap({_MMAP_THRESHOLD: HEAP_BYTES, _TRIM_THRESHOLD: KEPT_BYTES})


def keep_all_freed_memory() -> None:
    """The same for large tensors, too, until the process ends: for training on a CPU.

    Every step needs what the last one did. Where models come and go, as in an evaluation, holes
    between them would add a fifth to the most that the process takes.
    """
    _set_heap({_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER})


def give_back_freed_memory() -> None:
    """Have a tensor's memory go back when it is freed, but for small ones (glibc).

    Where weights are divided, whole layers come and go among the parts that stay. In one region of
    memory they leave holes that seldom fit what comes next: a third more than the tensors need.
    """
    _set_heap({_MMAP_THRESHOLD: PASSING_BYTES, _TRIM_THRESHOLD: KEPT_BYTES})


def _set_heap(options: Mapping[int, int]) -> None:
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for option, value in options.items():
            mallopt(option, value)
