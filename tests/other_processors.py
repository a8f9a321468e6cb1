"""CPUID of processors that this machine is not, for `tests/other_processor.c`."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("other_processor.c")

_LEAF_7_AVX_512 = (  # Bits of EBX, ECX and EDX that say AVX-512 or AMX.
    (16, 17, 21, 26, 27, 28, 30, 31),
    (1, 6, 11, 12, 14),
    (2, 3, 8, 22, 23, 24, 25),
)


def _without(bits: tuple[int, ...]) -> str:
    return f"&{0xFFFFFFFF & ~sum(1 << bit for bit in bits):x}"


NO_AVX_512 = f"7.0=-,{','.join(map(_without, _LEAF_7_AVX_512))} 7.1={_without((4, 5))},-,-,-"
NO_FP16 = f"7.0=-,-,-,{_without((22, 23, 24, 25))} 7.1={_without((4,))},-,-,-"

# Vendor strings as EBX, ECX and EDX of leaf 0.
AMD = "0.0=10,68747541,444d4163,69746e65"
HYGON = "0.0=d,6f677948,656e6975,6e65476e"
INTEL = "0.0=16,756e6547,6c65746e,49656e69"

# AMD's own leaves: 1 MB or 512 KB of L2, 32 or 16 MB of L3; Intel's cache leaf is empty there.
_NO_INTEL_CACHES = "4.0=0,0,0,0 4.1=0,0,0,0 4.2=0,0,0,0 4.3=0,0,0,0 2.0=0,0,0,0"
ZEN_4_CACHES = (
    "80000000.0=80000028,68747541,444d4163,69746e65 "
    "8000001d.0=121,1c0003f,3f,0 8000001d.1=122,1c0003f,3f,0 8000001d.2=143,1c0003f,7ff,2 "
    f"8000001d.3=4163,3c0003f,7fff,1 8000001d.4=0,0,0,0 {_NO_INTEL_CACHES}"
)
ZEN_2_CACHES = (
    "80000000.0=80000020,68747541,444d4163,69746e65 "
    "8000001d.0=121,1c0003f,3f,0 8000001d.1=122,1c0003f,3f,0 8000001d.2=143,1c0003f,3ff,2 "
    f"8000001d.3=4163,3c0003f,3fff,1 8000001d.4=0,0,0,0 {_NO_INTEL_CACHES}"
)
# 256 KB and 1 MB of L2.
HASWELL_CACHES = "4.2=1c004143,1c0003f,1ff,0 4.3=1c03c163,4c0003f,5fff,6"
SKYLAKE_CACHES = "4.2=1c004143,3c0003f,3ff,0 4.3=1c03c163,280003f,cfff,4"

PROCESSORS = {
    "AMD family 25 model 17": f"{AMD} 1.0=a10f11,-,-,- {NO_FP16} {ZEN_4_CACHES}",
    "AMD family 23 model 49": f"{AMD} 1.0=830f10,-,-,- {NO_AVX_512} {ZEN_2_CACHES}",
    "Hygon family 24 model 1": f"{HYGON} 1.0=900f10,-,-,- {NO_AVX_512} {ZEN_2_CACHES}",
    "Intel family 6 model 63": f"{INTEL} 1.0=306f2,-,-,- {NO_AVX_512} {HASWELL_CACHES}",
    "Intel family 6 model 85": f"{INTEL} 1.0=50657,-,-,- {NO_FP16} {SKYLAKE_CACHES}",
}
"""Name -> what its CPUID says otherwise than this machine's."""


def build(folder: Path) -> Path | None:
    """The library to preload; None without a C compiler or a kernel that lets CPUID fault."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "other_processor.so"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE]
    subprocess.run([compiler, *options], check=True)
    done = subprocess.run(
        ["true"], env={"LD_PRELOAD": str(library)}, capture_output=True, check=False
    )
    return None if done.returncode == _CANNOT_FAULT else library


_CANNOT_FAULT = 3
"""Exit code of `other_processor.c` where arch_prctl fails."""
