"""The row of a machine for docs/reproducibility.md, from what Linux says of its processors."""

from pathlib import Path

from tasks.reporting.machine_row import machine_row, read_cpuinfo

ROOT = Path(__file__).resolve().parents[4]
ZEN_3 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7763 64-Core Processor
flags\t\t: fpu sse2 avx fma avx2 bmi2

processor\t: 1
vendor_id\t: AuthenticAMD
flags\t\t: fpu avx512f
"""
ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0+cpu", "threads": 2, "machine": "x86_64"}


def row(cpuinfo: str) -> str:
    return machine_row(
        ENVIRONMENT, commit="abc1234" + "0" * 33, result="all 43 outputs equal",
        digest="fa5aa16125", cpuinfo=cpuinfo,
    )  # fmt: skip


def test_a_row_names_family_model_and_the_instructions_that_libraries_choose_by():
    assert row(ZEN_3) == (
        "| `abc1234` | all 43 outputs equal | `fa5aa16125` "
        "| AMD EPYC 7763 64-Core Processor (AuthenticAMD family 25 model 1) | AVX2, FMA | 2 "
        "| 3.11.7, 2.13.0+cpu |"
    )


def test_a_system_without_cpuinfo_has_a_row_too():
    assert "| x86_64 | none of these | 2 |" in row("")


def test_a_row_has_the_columns_of_the_table():
    page = (ROOT / "docs/reproducibility.md").read_text(encoding="utf-8")
    (header,) = [line for line in page.splitlines() if line.startswith("| commit |")]
    assert row(read_cpuinfo()).count("|") == header.count("|")
