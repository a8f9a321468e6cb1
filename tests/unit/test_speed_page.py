"""The page of the speed benchmark computes its figures from the measurements."""

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import (
    orchestration,
    scaling,
    scaling_page,
    speed,
    speed_numbers,
    speed_page,
)


def iteration(total: float, update: float, **more: float) -> dict[str, object]:
    phases = {"total": total, "rollout": 0.5, "scoring": 0.25, "update": update, "tokens": 300.0}
    return {"phases": phases, "peak": 5e8, "ceiling": 2e9, **more}


def test_the_page_has_medians_ratios_and_the_share_of_the_ceiling(tmp_path: Path):
    memory = {"weights": 1e6, "bandwidth": 3.2e8}
    ours = [
        iteration(2.0, 1.0, flops=1.5e9, **memory),
        iteration(4.0, 2.0, **memory, steps=32, cached=3.2e7),
        iteration(3.0, 1.5, **memory),
    ]
    trl = [iteration(5.0, 4.0), iteration(6.0, 5.0), iteration(9.0, 8.0)]
    same = {"size": "4M", "lengths": "ragged"}
    steps = [{"steps": [0.2, 0.1, 0.4], "peak": peak} for peak in (2e8, 3e8, 1e8)]
    rows = [
        {**same, "work": "ppo-separate", "ours": ours, "trl": trl},
        {**same, "work": "ppo-shared", "ours": [iteration(1.0, 0.5)] * 3},
        {
            **same,
            "work": "sft",
            "ours": steps,
            "trl": [{"steps": [0.3, 0.5, 0.1], "peak": 4e8}] * 3,
        },
    ]
    versions = {"ppo": "1", "sft": "2", "reward": "3"}
    found = {
        "machine": "M", "threads": 1, "runs": 3, "trl": versions, "load": [1.0, 7.5], "rows": rows,
        "bits": {"ours": "native", "trl": "native"}, "ends": "as told",
        "decoded_by_trl": 64,
    }  # fmt: skip
    (tmp_path / "cpu-4M-m.json").write_text(json.dumps(found))
    # Another size, measured on another day.
    small = [
        {"size": "0.6M", "lengths": "ragged", "work": "ppo-separate", "ours": [iteration(7.0, 2)]}
    ]
    # With portable bits for us: rows of their own, beside the TRL of the same measurement.
    slow = [
        {
            **same,
            "work": "ppo-separate",
            "ours": [iteration(10.0, 5.0, kernels="AVX2")] * 3,
            "trl": [iteration(5.0, 4.0, kernels="AVX512")] * 3,
        }
    ]
    confined = found | {"bits": {"ours": "portable", "trl": "native"}, "rows": slow}
    (tmp_path / "cpu-4M-portable-m.json").write_text(json.dumps(confined))
    other = found | {
        "machine": "N",
        "runs": 1,
        "load": [0.5],
        "rows": small,
        "iteration": 2,
        "note": " Of two.",
    }
    (tmp_path / "cpu-0.6M-n.json").write_text(json.dumps(other))
    speed_page.write_page(tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    same_bits = "4M | ragged | float32 | native / native | M |"
    separate = f"| PPO iteration, separate value model | {same_bits} 3.000 [2.000, 4.000] | "
    assert f"{separate}6.000 [5.000, 9.000] | **2.00** |" in page
    # TRL has no shared trunk: its separate model is what the row compares with.
    assert (
        f"shared trunk | {same_bits} 1.000 [1.000, 1.000] | 6.000 [5.000, 9.000] | **6.00**" in page
    )
    assert (
        f"| SFT step | {same_bits} 0.200 [0.200, 0.200] | 0.300 [0.300, 0.300] | **1.50** |" in page
    )
    # 1.5e9 operations in 1, 2 and 1.5 s at a ceiling of 2e9 a second: 75, 38 and 50 %.
    # 64 steps in 0.5 s, each of which reads 1e6 bytes, at a bandwidth of 3.2e8 a second: 40 %.
    # Of the second run half as many steps, and as much again in keys and values.
    assert "| ours | 0.50 | 0.25 | 1.50 | 300 | 600 | 50% | 40% |" in page
    assert "| trl | 0.50 | 0.25 | 5.00 | 300 | 600 | – | – |" in page
    # The most of any run, of training steps, too; a shared trunk beside TRL's separate model.
    assert f"| SFT step | {same_bits} 300 MB | 400 MB | 75% |" in page
    assert f"| PPO iteration, shared trunk | {same_bits} 500 MB | 500 MB | 100% |" in page
    assert (
        "separate value model | 0.6M | ragged | float32 | native / native | N | 500 MB | – | – |"
        in page
    )
    # 0.5 s for 300 tokens on either side.
    generation = f"| generation, 1,000 tokens | {same_bits} 1.667 [1.667, 1.667] | 1.667 [1.667, "
    assert f"{generation}1.667] | **1.00** |" in page
    assert (
        "- 4M, float32, native / native: M, 1 thread(s), CPU seconds of all threads; medians of 3"
        in page
    )
    versions = "TRL 1 for PPO, 2 for SFT, 3 for reward training."
    first = "ragged lengths as told; of PPO the first iteration;"
    assert f"load average 1.0 to 7.5; {first} {versions}" in page
    assert "- 0.6M, float32, native / native: N, 1 thread(s)" in page
    assert "ragged lengths as told; of PPO the second iteration; without TRL. Of two." in page
    assert (
        "separate value model | 0.6M | ragged | float32 | native / native | N | 7.000 | – | – |"
        in page
    )
    confined_row = (
        "| 4M | ragged | float32 | portable / native | M | 10.000 [10.000, 10.000] | 5.000 "
    )
    assert confined_row in page
    assert (
        "- 4M, float32, portable / native: M, kernels: ours AVX2, trl AVX512, ceiling in "
        "GFLOP/s: ours 2, trl 2, 1 thread(s)" in page
    )
    in_short = page.partition("- 0.6M, float32")[0]
    assert f"| {same_bits} 2.00 | 6.00 | 1.00 | 1.50 | – |" in in_short
    assert "| 4M | ragged | float32 | portable / native | M | 0.50 | – | 1.00 | – | – |" in in_short
    assert f"| 0.6M | ragged | float32 | native / native | N |{' – |' * 5}" in in_short
    assert "Not measured here: 135M, 1B." in page
    assert page.count("**Not measured**") == 1


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("AMD EPYC (family 26, model 2), 2 cores", "AMD 26/2"),
        ("Intel(R) Xeon(R) Processor (family 6, model 207), 2 cores", "Intel 6/207"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_machine_has_a_short_name(machine: str, expected: str):
    assert speed_numbers.short(machine) == expected


def test_two_threads_have_rows_of_their_own_beside_trl_with_two(tmp_path: Path):
    """In a file of their own: before, it took the place of the one of a thread."""
    row = {"size": "4M", "lengths": "uniform", "work": "ppo-separate"}
    for threads, ours, trl in ((1, 2, 3), (2, 1, 5)):
        options = argparse.Namespace(
            threads=threads, bits="native", precision="float32", avx2=False
        )
        found = {
            "machine": speed._machine(options, "cpu"), "threads": threads, "runs": 1,
            "load": [0.5], "ends": speed_page.DRAWN, "decoded_by_trl": 64,
            "trl": {"ppo": "1", "sft": "2", "reward": "3"},
            "bits": {"ours": "native", "trl": "native"},
            "rows": [row | {"ours": [iteration(ours, 0.5)], "trl": [iteration(trl, 0.5)]}],
        }  # fmt: skip
        (tmp_path / speed._name("cpu", "4M", options)).write_text(json.dumps(found))
    speed_page.write_page(tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    ratios = [line for line in page.splitlines() if line.startswith("| PPO iteration, sep")]
    assert sum(line.endswith("| 2.000 | 3.000 | **1.50** |") for line in ratios) == 1
    assert sum(line.endswith(", 2 threads | 1.000 | 5.000 | **5.00** |") for line in ratios) == 1


@pytest.mark.parametrize(
    ("benchmark", "option"),
    [(speed, "--runs"), (speed, "--threads"), (scaling, "--runs"), (orchestration, "--repeat")],
)
@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_nothing_is_measured_no_times_and_no_file_of_before_is_replaced(
    benchmark: ModuleType,
    option: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(sys, "argv", ["benchmark", f"{option}={value}"])
    monkeypatch.setattr(speed, "make_environment", pytest.fail)
    with pytest.raises(SystemExit) as refused:
        benchmark.main()
    assert refused.value.code == 2
    assert f"expected a whole number above 0, found '{value}'" in capsys.readouterr().err


def test_bfloat16_has_rows_of_its_own_beside_trl_in_bfloat16(tmp_path: Path):
    """Measured on the same day as a row of float32, of which it must take nothing."""
    same = {"size": "4M", "lengths": "uniform", "work": "ppo-separate"}
    found = {
        "machine": "M", "threads": 1, "runs": 1, "load": [0.5], "ends": speed_page.DRAWN,
        "decoded_by_trl": 64,
        "trl": {"ppo": "1", "sft": "2", "reward": "3"}, "bits": {"ours": "native", "trl": "native"},
    }  # fmt: skip
    for precision, suffix, ours, trl in (("float32", "", 2, 3), ("bfloat16", "-bfloat16", 1, 5)):
        row = same | {"ours": [iteration(ours, 0.5)], "trl": [iteration(trl, 0.5)]}
        text = json.dumps(found | {"precision": precision, "rows": [row]})
        (tmp_path / f"cpu-4M{suffix}-m.json").write_text(text)
    speed_page.write_page(tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "| 4M | uniform | float32 | native / native | M | 2.000 | 3.000 | **1.50** |" in page
    assert "| 4M | uniform | bfloat16 | native / native | M | 1.000 | 5.000 | **5.00** |" in page
    assert "- 4M, bfloat16, native / native: M" in page
    goal = "| PPO iteration, separate value model, TRL / ours | 4M | uniform | bfloat16 |"
    assert f"{goal} native / native | M | at least 1.15 | 5.00 | yes |" in page


def test_the_page_is_what_the_measurements_say(tmp_path: Path):
    speed_page.write_page(tmp_path / "page.md", speed.RESULTS)
    assert (tmp_path / "page.md").read_text() == (speed.ROOT / "docs/benchmarks.md").read_text()


def test_the_exponents_are_those_of_the_power_laws_that_made_the_points():
    # Runs of three, median in the middle: 2 n^1.5; and 5 n^0.25, given out of order.
    points = [
        {"axis": "tokens", "value": n, "seconds": [0.5 * n**1.5, 2 * n**1.5, 9 * n**1.5]}
        for n in (4, 16, 64)
    ] + [{"axis": "rounds", "value": n, "seconds": [5 * n**0.25] * 3} for n in (4, 1, 2)]
    found = {"machine": "M", "runs": 3, "load": [0.0, 1.0], "points": points}
    text = "\n".join(scaling_page.section(found))
    assert "| tokens | 4 | 64 | 16.00 to 1024.00 | 1.50 | 1.50 |" in text
    assert "| rounds | 1 | 4 | 5.00 to 7.07 | 0.25 | 0.25 |" in text
