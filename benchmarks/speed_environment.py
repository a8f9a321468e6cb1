"""What the libraries of each side's process read when they are loaded: which instructions to take.

This process has the pins of `rlhf.bits` in its own environment, since importing `tasks` sets them.
TRL never gets them: a user of TRL has none.
"""

import json
import os
from collections.abc import Mapping

from rlhf.bits import NATIVE, PORTABLE, Bits

AVX2: Mapping[str, str] = {
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""A processor with AVX-512 computes so as one without; `MKL_CBWR` is left to what bits ask for."""

BEFORE = "RLHF_BITS_BEFORE"
"""Where `rlhf.bits` keeps what its pins replaced."""


def without_pins(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment as it was before `rlhf.bits` chose: TRL's."""
    found = dict(environment)
    replaced: dict[str, str | None] = json.loads(found.pop(BEFORE, "{}"))
    for name, value in replaced.items():
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return {name: value for name, value in found.items() if NATIVE.get(name) != value}


def with_bits(bits: Bits, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Ours: what `rlhf.bits.choose` gives the libraries of a stage with these bits."""
    found = without_pins(environment)
    if bits == "native":
        return {**NATIVE, **found}
    kept = {name: value for name, value in found.items() if name not in PORTABLE}
    return kept | {name: value for name, value in PORTABLE.items() if value is not None}
