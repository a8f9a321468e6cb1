"""The same kernels of Intel's MKL on processors of every maker.

torch calls MKL for matrix products and for `exp`, `log`, `sqrt` and `erf` of whole tensors. MKL
asks who made the processor. On Intel's own it follows `MKL_CBWR=AVX2` to kernels that no other
maker's processor gets; on AMD's Zen it has others, with AVX2 as well, which add in another order.
Its one setting for all makers, `MKL_CBWR=COMPATIBLE`, has SSE2 alone: products take 2.6 times as
long (docs/decisions/0010-portable-bits.md).

MKL keeps the answer in two variables that it has no setting for. `take_kernels` writes into both
what a Zen answers, and `obstacle` computes something to see that it worked.

For native bits `take_fastest_kernels` writes what an Intel answers: MKL gives a Zen none of its
kernels for AVX-512. On a Zen 5 products are 2.3 times as fast with them, and a training step is 2.0
times as fast (docs/lab-notebook.md, 2026-11-25). On a Zen 3, which has AVX2 alone, an Intel's
kernels are 1.1 times as fast as its own (2026-11-27).

MKL's square root starts from the processor's own estimate of 1 / sqrt(x), which every maker looks
up in a table of his own: on a Zen 5 a fifth of its roots differ in the last bit from an Intel's. So
`sqrt` becomes the rounded root of IEEE 754, which NumPy computes.
"""

import ctypes
import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlhf.cpu_kernels import replace_kernels

_LIBRARY = Path(torch.__file__).parent / "lib/libtorch_cpu.so"

_QUESTIONS = (
    ("mkl_serv_intel_cpu_true", 0x00),  # Is it Intel's?
    ("mkl_serv_cpuiszen", 0x1E),  # Is it a Zen?
)
"""A function of MKL, and where in it the variable with its answer is read."""

_ZEN, _INTEL = (0, 1), (1, 0)
"""What each answers, in that order."""

_UNKNOWN = -1
"""What such a variable holds until its function has been called."""

_READS, _TESTS = b"\x8b\x05", b"\x85\xc0"
"""`mov eax, [rip + distance]` and `test eax, eax`, the code around the distance to the variable."""

_PROOF = "d4dfb5b5cf"
"""Measured with torch 2.13.0; other kernels, such as those of Intel's AVX2, give another value."""


_FROM_AN_ESTIMATE = (torch.float32, torch.float64)
"""Types whose square roots MKL computes. `torch.sqrt` with `out` stays MKL's, for the others."""


def take_kernels() -> None:
    """Let MKL take the kernels of portable bits, unless it has computed already."""
    _answer(_ZEN)
    _round_square_roots()


def take_fastest_kernels() -> None:
    """Let MKL take an Intel's kernels, unless MKL has computed already.

    The processor must have AVX2; whether it has AVX-512 MKL finds out by itself.
    """
    _answer(_INTEL)


def _answer(answers: tuple[int, int]) -> None:
    for variable, answer in zip(_variables(), answers, strict=False):
        if variable.value == _UNKNOWN:
            variable.value = answer


def _round_square_roots() -> None:
    """Let `sqrt` of float32 and float64 on the CPU give way to NumPy's; not so `x ** 0.5`."""
    replace_kernels({"sqrt": _sqrt, "sqrt_": _sqrt_in_place})


def _sqrt(x: Tensor) -> Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.get_default_dtype())
    return _roots(x, torch.empty_like(x))


def _sqrt_in_place(x: Tensor) -> Tensor:
    return _roots(x, x)


def _roots(x: Tensor, out: Tensor) -> Tensor:
    if x.dtype not in _FROM_AN_ESTIMATE:
        return torch.sqrt(x, out=out)
    with np.errstate(invalid="ignore"):
        np.sqrt(x.detach().numpy(), out=out.detach().numpy())
    return out


def obstacle() -> str | None:
    """Why products here do not have portable bits, by computing some; None where they have."""
    if (found := _proof()) == _PROOF:
        return None
    return (
        f"MKL does not compute as portable bits ask (hash {found}, expected {_PROOF}): torch was "
        f"used before a stage could choose, or torch {torch.__version__} on this processor has "
        "other kernels than torch 2.13.0; set run.bits: native"
    )


def _proof() -> str:
    """A hash of two products and exponentials, which differ between MKL's kernels."""
    numbers = 1 / torch.arange(1, 351 * 16 + 1, dtype=torch.float32)
    left, right = numbers.view(16, 351), numbers.view(351, 16)
    results = ((left @ right).flatten(), left @ right[:, 0], numbers.exp())
    return hashlib.sha256(torch.cat(results).numpy().tobytes()).hexdigest()[:10]


def _variables() -> list[ctypes.c_int32]:
    """The variables of `_QUESTIONS`; none of a torch that has no MKL inside it, or another one."""
    if not _LIBRARY.exists():
        return []
    library = ctypes.CDLL(str(_LIBRARY))
    found = []
    for function, offset in _QUESTIONS:
        if not hasattr(library, function):
            return []
        address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value
        assert address is not None
        code = ctypes.string_at(address + offset, len(_READS) + 4 + len(_TESTS))
        if not (code.startswith(_READS) and code.endswith(_TESTS)):
            return []
        read = len(_READS) + 4
        distance = int.from_bytes(code[len(_READS) : read], "little", signed=True)
        found.append(ctypes.c_int32.from_address(address + offset + read + distance))
    return found
