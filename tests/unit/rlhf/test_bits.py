"""Portable bits: each pin does something, all together give the values of another processor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf import bits
from tests import other_processors

ROOT = Path(__file__).resolve().parents[3]
CPUINFO = Path("/proc/cpuinfo").read_text(encoding="utf-8")

ZEN_3 = {
    "randn": "19fe8db183", "gemm": "e041bf9382", "gemm_t": "7ff035f149", "bmm": "225f9b4c96",
    "softmax": "cf6db2cef4", "logsoftmax": "9b4da8e023", "exp": "7b112a2c0e", "silu": "268e497e50",
    "gelu": "7d2fdab822", "tanh": "1ebe0de18f", "rowsum": "113682f243", "sdpa": "762e5114f2",
    "lerp": "01056d0a8e", "lingrad": "3b66568698", "cegrad": "1a3b58d8eb",
}  # fmt: skip
"""Measured with torch 2.13.0 on an AMD processor of family 25, model 1, which has no AVX-512, with
and without pins."""

ZEN_4 = {
    "numpy_exp": "9d2d9e1995", "numpy_log1p": "2e687f6304", "numpy_dot": "407a4ccce9",
    "numpy_gemv": "9a7d3516c6",
}  # fmt: skip
"""Measured with NumPy 2.4.6 and the pins on an AMD processor of family 25, model 17 (AVX-512)."""

ZEN_BY_CPUID = {
    "gemm_odd": "63b18e965c", "gemv": "f5d5931676", "log": "329a4e1893", "erf": "88446442fa",
    "linear_bf16": "395c9518dd",
}  # fmt: skip
"""Measured with torch 2.13.0 and the pins, but without `rlhf.mkl`, on an Intel (family 6,
model 207) whose CPUID said AMD, family 25, model 17 (`tests/other_processor.c`)."""

IEEE_754 = {"sqrt": "cde889c006"}
"""Of the rounded roots: the standard knows one float32 for each."""

EVERYWHERE = ZEN_3 | ZEN_4 | ZEN_BY_CPUID | IEEE_754

WITH_AVX2 = pytest.mark.skipif(
    bits.obstacle() is not None, reason=f"this machine has {bits.obstacle()}"
)
BEYOND_AVX2 = pytest.mark.skipif(
    "avx512f" not in CPUINFO, reason="nothing to pin: this processor has nothing beyond AVX2"
)
CORES = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: nothing to divide")
FAST = ("AMD family 25 model 17", "Intel family 6 model 63")
"""Both makers, with AVX-512 and without, with caches of two sizes."""


@pytest.fixture(scope="module")
def other_processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that answers CPUID; the test is skipped where there can be none."""
    library = other_processors.build(tmp_path_factory.mktemp("processor"))
    if library is None:
        pytest.skip("needs a C compiler, and a processor and kernel that let CPUID fault")
    return library


def probe(threads: int, *without: str, **more: str) -> dict[str, str]:
    """The hashes of a fresh process with the pins, whatever the user has set."""
    clean = {name: value for name, value in os.environ.items() if name not in bits.PORTABLE}
    clean.pop("RLHF_BITS_BEFORE", None)
    done = subprocess.run(
        [sys.executable, ROOT / "tests/bits_probe.py", str(threads), *without],
        cwd=ROOT,
        env={**clean, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""  # NumPy warns of names that it does not know.
    found: dict[str, str] = json.loads(done.stdout)
    return found


@WITH_AVX2
@pytest.mark.parametrize("threads", [1, pytest.param(3, marks=pytest.mark.long)])
def test_the_pins_give_the_values_of_an_older_processor(threads: int) -> None:
    assert probe(threads) == EVERYWHERE


@WITH_AVX2
@pytest.mark.parametrize(
    "processor",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.long)
        for name in other_processors.PROCESSORS
    ],
)
def test_every_maker_and_every_cache_give_the_same_values(
    processor: str, other_processor: Path
) -> None:
    cpuid = other_processors.PROCESSORS[processor]

    assert probe(1, LD_PRELOAD=str(other_processor), CPUID=cpuid) == EVERYWHERE


@WITH_AVX2
@pytest.mark.long
def test_without_our_answers_mkl_asks_who_made_the_processor(other_processor: Path) -> None:
    amd, intel = (
        probe(1, "mkl", LD_PRELOAD=str(other_processor), CPUID=other_processors.PROCESSORS[name])
        for name in ("AMD family 23 model 49", "Intel family 6 model 63")
    )

    changed = {"gemm_odd", "gemv", "exp", "log", "sqrt", "erf"}
    assert {name for name in amd if amd[name] != intel[name]} == changed
    assert amd == EVERYWHERE | {"sqrt": amd["sqrt"]}


@WITH_AVX2
@pytest.mark.parametrize(
    ("pin", "changed"),
    [
        pytest.param("MKL_CBWR", {"gemv"}),
        pytest.param(
            "ATEN_CPU_CAPABILITY",
            {"softmax", "cegrad", "sdpa"},
            marks=[BEYOND_AVX2, pytest.mark.long],
        ),
        pytest.param("ONEDNN_MAX_CPU_ISA", {"gelu"}, marks=[BEYOND_AVX2, pytest.mark.long]),
        pytest.param(
            "NPY_ENABLE_CPU_FEATURES",
            {"numpy_exp", "numpy_log1p"},
            marks=[BEYOND_AVX2, pytest.mark.long],
        ),
        pytest.param(
            "OPENBLAS_CORETYPE", {"numpy_dot", "numpy_gemv"}, marks=[BEYOND_AVX2, pytest.mark.long]
        ),
        pytest.param(
            "OPENBLAS_NUM_THREADS", {"numpy_dot", "numpy_gemv"}, marks=[CORES, pytest.mark.long]
        ),
    ],
)
def test_without_one_of_the_pins_the_values_are_others(pin: str, changed: set[str]) -> None:
    found = probe(1, pin)

    assert changed <= {name for name in found if found[name] != EVERYWHERE[name]}


def test_every_pin_has_a_test() -> None:
    """All but the one that is only removed; NumPy does not start with both."""
    tested = test_without_one_of_the_pins_the_values_are_others.pytestmark[0].args[1]

    assert {row.values[0] for row in tested} == set(bits.PORTABLE) - {"NPY_DISABLE_CPU_FEATURES"}


SHOW = """
import json, os, sys
{before}
from rlhf import bits
from tests import other_processors
bits.choose({chosen!r})
{after}
print(json.dumps({{name: os.environ.get(name) for name in bits.PORTABLE}}))
"""


def chosen(bits_chosen: str, *, before: str = "", after: str = "", **variables: str) -> object:
    """The variables after `choose`, in a process that starts with only these."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(chosen=bits_chosen, before=before, after=after)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


NOTHING = dict.fromkeys(bits.PORTABLE)


@WITH_AVX2
def test_portable_bits_override_what_the_user_has_set() -> None:
    theirs = {"MKL_CBWR": "COMPATIBLE", "NPY_DISABLE_CPU_FEATURES": "X86_V4"}

    assert chosen("portable", **theirs) == dict(bits.PORTABLE)


def test_native_bits_leave_what_the_user_has_set() -> None:
    assert chosen("native") == NOTHING | {"MKL_CBWR": "AUTO,STRICT"}
    theirs = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"}
    assert chosen("native", **theirs) == NOTHING | theirs


@WITH_AVX2
def test_a_native_child_of_a_portable_parent_has_what_the_user_had_set() -> None:
    child = (
        "import subprocess; sys.exit(subprocess.call([sys.executable, '-c', 'import json, os; "
        'from rlhf import bits; bits.choose("native"); '
        "print(json.dumps({name: os.environ.get(name) for name in bits.PORTABLE}))']))"
    )

    theirs = {"OPENBLAS_NUM_THREADS": "3"}
    expected = NOTHING | theirs | {"MKL_CBWR": "AUTO,STRICT"}
    assert chosen("portable", after=child, **theirs) == expected


@WITH_AVX2
@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_a_library_that_is_already_there_makes_the_choice_too_late(module: str) -> None:
    found = chosen("portable", before=f"import {module}", after="bits.require('portable')")

    assert isinstance(found, str)
    assert "BitsError" in found
    assert module in found
    assert "before run.bits could take effect" in found


@WITH_AVX2
def test_pins_that_a_parent_has_set_are_in_time_for_a_library_loaded_first() -> None:
    pins = {name: value for name, value in bits.PORTABLE.items() if value is not None}

    after = "assert bits.require('portable') == 'portable'; bits.require_kernels()"
    assert chosen("portable", before="import torch", after=after, **pins) == dict(bits.PORTABLE)


@BEYOND_AVX2
@WITH_AVX2
def test_pins_set_by_hand_after_torch_has_computed_are_seen_through_its_kernels() -> None:
    pins = {name: value for name, value in bits.PORTABLE.items() if value is not None}

    found = chosen(
        "portable",
        before=f"import torch; torch.ones(2).exp(); os.environ.update({pins!r})",
        after="bits.require_kernels()",
    )
    assert "torch should use AVX2 kernels, but uses AVX512" in str(found)


@WITH_AVX2
def test_a_product_before_the_kernels_are_chosen_is_refused_on_an_intel(
    other_processor: Path,
) -> None:
    pins = {name: value for name, value in bits.PORTABLE.items() if value is not None}
    cpuid = other_processors.PROCESSORS["Intel family 6 model 63"]

    found = chosen(
        "portable",
        before="import torch; torch.ones(9, 9) @ torch.ones(9, 9)",
        after="bits.require_kernels()",
        LD_PRELOAD=str(other_processor),
        CPUID=cpuid,
        **pins,
    )
    assert "MKL does not compute as portable bits ask (hash " in str(found)
    assert "torch was used before a stage could choose" in str(found)


def test_a_process_that_began_with_other_bits_is_refused() -> None:
    found = chosen("native", after="bits.require('portable')")

    assert "this process began with native bits; run.bits now says portable" in str(found)


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "fpu sse2 avx avx2 fma", None),
        ("x86_64", "fpu sse2 avx", "a processor without AVX2 and FMA"),
        ("x86_64", "fpu sse2 avx avx2", "a processor without FMA"),
        ("aarch64", "", "a processor of type aarch64"),
    ],
)
def test_what_keeps_a_machine_from_portable_bits(
    machine: str, flags: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr(bits, "_CPUINFO", cpuinfo)
    system = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*system[:4], machine)))

    assert bits.obstacle() == expected


def test_where_portable_bits_cannot_be_had_nothing_is_pinned(tmp_path: Path) -> None:
    """torch would end by SIGILL if it were pinned to instructions that are not there."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu sse2\n")
    path = f"pathlib.Path({str(cpuinfo)!r})"
    before = f"import pathlib; from rlhf import bits; bits._CPUINFO = {path}"

    after = "assert bits.require('portable') == \"this processor's own\""
    found = chosen("portable", before=before, after=after)
    assert found == NOTHING | {"MKL_CBWR": "AUTO,STRICT"}
