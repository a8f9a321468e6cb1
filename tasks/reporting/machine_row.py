"""The row of a machine for the table in `docs/reproducibility.md`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

INSTRUCTIONS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX",
}
"""Flag of `lscpu` -> name, of those by which numerical libraries choose."""


def machine_row(
    environment: Mapping[str, Any], *, commit: str, result: str, digest: str, cpuinfo: str
) -> str:
    """One row: commit, result, hash of the outputs, processor, instructions, threads, versions.

    Args:
        environment: what the stages ran on, from an outcome.
        commit: the one that was verified.
        result: in words.
        digest: of all outputs.
        cpuinfo: the text of `/proc/cpuinfo`; empty on another system.
    """
    cpu = _first_processor(cpuinfo)
    flags = cpu.get("flags", "").split()
    vendor = cpu.get("vendor_id", environment.get("machine", "unknown"))
    family = f"{vendor} family {cpu.get('cpu family', '?')} model {cpu.get('model', '?')}"
    cells = (
        f"`{commit[:7]}`",
        result,
        f"`{digest}`",
        f"{cpu['model name']} ({family})" if "model name" in cpu else str(vendor),
        ", ".join(name for flag, name in INSTRUCTIONS.items() if flag in flags) or "none of these",
        str(environment.get("threads", "?")),
        f"{environment.get('python', '?')}, {environment.get('torch', '?')}",
    )
    return f"| {' | '.join(cells)} |"


def read_cpuinfo() -> str:
    """What Linux says of the processors; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _first_processor(cpuinfo: str) -> dict[str, str]:
    block = cpuinfo.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
