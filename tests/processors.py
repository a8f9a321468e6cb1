"""What tests have to know of the processor that they run on."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo").read_text(encoding="utf-8")
INTEL_WITH_AVX_512 = "GenuineIntel" in CPUINFO and "avx512f" in CPUINFO
"""Portable bits are not AMD's there yet (docs/reproducibility.md)."""
