"""Which instructions the numerical libraries may use, so that two machines give the same bytes.

Each of these libraries looks at the processor when it is loaded and takes the fastest instructions
that it finds; a sum over eight numbers at a time rounds otherwise than one over sixteen. Portable
bits take AVX2 with FMA everywhere, which every x86-64 processor has since Intel's Haswell (2013)
and AMD's Zen (2017). `choose` must run before torch and NumPy are imported, so this module imports
neither. That the number of threads changes nothing either is the work of `rlhf.thread_order`.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Bits = Literal["portable", "native"]
"""`portable`: the same on every AVX2 processor; `native`: what is fastest here."""

BitsInEffect = Literal["portable", "native", "this processor's own"]
"""The last: portable bits were asked for, and the processor cannot give them."""

MAX_THREADS = 8
"""Up to so many threads give the same bits, but for small products (docs/reproducibility.md)."""

PORTABLE: Mapping[str, str | None] = {
    "MKL_CBWR": "AVX2,STRICT",  # torch's matrix products; STRICT: with most numbers of threads
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # GELU, and bfloat16
    "NPY_ENABLE_CPU_FEATURES": "X86_V3",  # NumPy's name for AVX2 with FMA
    "NPY_DISABLE_CPU_FEATURES": None,  # NumPy refuses to start with both
    "OPENBLAS_CORETYPE": "Haswell",  # products of NumPy and SciPy
    "OPENBLAS_NUM_THREADS": "1",  # its products depend on the number of threads
}
"""What each variable is set to, whatever the user has set; None removes it."""

NATIVE: Mapping[str, str] = {"MKL_CBWR": "AUTO,STRICT"}
"""Set unless the user has set it: one thread gives the bits of two on the same processor."""

_BEFORE = "RLHF_BITS_BEFORE"
"""What the pins replaced, for a child whose params ask for native bits."""

_CPUINFO = Path("/proc/cpuinfo")

_NEEDED = ("avx2", "fma")

_THEIRS = ("torch", "numpy")
"""Modules that have read the variables once they are loaded."""

_in_effect: BitsInEffect | None = None
_too_late: tuple[str, ...] = ()


class BitsError(RuntimeError):
    """This process does not compute with the bits that it should; the message says why."""


def choose(bits: Bits) -> None:
    """Set what the libraries will read when they are loaded; children inherit it."""
    global _in_effect, _too_late
    before = dict(os.environ)
    _restore()
    if bits == "portable" and obstacle() is None:
        replaced = {name: os.environ.get(name) for name in PORTABLE}
        os.environ[_BEFORE] = json.dumps(replaced)
        _set(PORTABLE)
        _in_effect = "portable"
    else:
        for name, value in NATIVE.items():
            os.environ.setdefault(name, value)
        _in_effect = "native" if bits == "native" else "this processor's own"
    changed = any(before.get(name) != os.environ.get(name) for name in PORTABLE)
    if changed:
        _too_late = tuple(name for name in _THEIRS if name in sys.modules)


def require(bits: Bits) -> BitsInEffect:
    """The bits that this process computes with.

    Raises:
        BitsError: they are not those asked for.
    """
    if _in_effect is None:
        raise BitsError("rlhf.bits.choose has not run; it must, before torch is imported")
    if _too_late:
        raise BitsError(
            f"{' and '.join(_too_late)} was imported before run.bits could take effect; import "
            "tasks (or call rlhf.bits.choose) first"
        )
    if (bits == "native") != (_in_effect == "native"):
        raise BitsError(f"this process began with {_in_effect} bits; run.bits now says {bits}")
    return _in_effect


def in_effect() -> BitsInEffect | None:
    """The bits that this process computes with; None where it has not chosen."""
    return _in_effect


def require_kernels() -> None:
    """Let torch compute with the kernels of the bits that were chosen; before its first product.

    Raises:
        BitsError: it uses other kernels, so it was loaded or used too early.
    """
    import torch  # noqa: PLC0415 (must not be loaded before `choose`)

    from rlhf import mkl  # noqa: PLC0415 (imports torch)

    if _in_effect == "native" and _processor_flags().issuperset(_NEEDED):
        mkl.take_fastest_kernels()
    if _in_effect != "portable":
        return
    if (found := torch.backends.cpu.get_cpu_capability()) != "AVX2":
        raise BitsError(f"bits are portable, so torch should use AVX2 kernels, but uses {found}")
    mkl.take_kernels()
    if (reason := mkl.obstacle()) is not None:
        raise BitsError(reason)


def obstacle() -> str | None:
    """Why this machine cannot give portable bits; None where it can."""
    machine = os.uname().machine
    if machine not in ("x86_64", "amd64"):
        return f"a processor of type {machine}"
    missing = [flag.upper() for flag in _NEEDED if flag not in _processor_flags()]
    return f"a processor without {' and '.join(missing)}" if missing else None


def _processor_flags() -> frozenset[str]:
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return frozenset(next(flags, []))


def _restore() -> None:
    """Undo the pins of this process or of a parent."""
    if (text := os.environ.pop(_BEFORE, None)) is not None:
        _set(json.loads(text))


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
