"""What a stage uses of the machine, measured beside its work."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.running import machine_use
from tasks.running.machine_use import MachineUse
from tasks.tracking.spool import RunStart, Spool, open_spool

SMI = """#!/bin/sh
echo "$@" > "$(dirname "$0")/asked"
echo "0, 35, 1000, 71.50"
echo "1, [N/A], 20, [N/A]"
"""


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return open_spool(tmp_path, RunStart("sft", "now", {}, {}, {}))


def lines(spool: Spool) -> list[dict[str, Any]]:
    path = spool.folder / "system.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_short_stage_is_measured_once_at_its_end(spool: Spool) -> None:
    use = MachineUse(spool, gpu=False)
    block = b"x" * 80_000_000
    use.close()

    (line,) = lines(spool)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    found = line["metrics"]
    assert len(block) / 1e6 < found["system/process_memory_megabytes"]
    assert found["system/process_memory_megabytes"] == pytest.approx(resident, rel=0.2)
    assert set(found) == {
        "system/cpu_utilization_percentage", "system/system_memory_usage_megabytes",
        "system/process_cpu_percentage", "system/process_memory_megabytes",
    }  # fmt: skip


def test_a_resumed_stage_goes_on_counting(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_use, "EVERY_SECONDS", 0.01)
    use = MachineUse(spool, gpu=False)
    while not (spool.folder / "system.jsonl").exists() or len(lines(spool)) < 3:
        time.sleep(0.01)
    use.close()
    spool.finish("KILLED", {}, [])
    before = len(lines(spool))
    with (spool.folder / "system.jsonl").open("a") as stream:
        stream.write('{"step": ')

    again = open_spool(spool.folder.parents[3], RunStart("sft", "now", {}, {}, {}))
    MachineUse(again, gpu=False).close()

    assert again.folder == spool.folder
    assert [line["step"] for line in lines(again)] == list(range(len(lines(again))))
    assert len(lines(again)) > before


def test_the_gpus_of_the_process_are_asked_through_nvidia_smi(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-4f")

    MachineUse(spool, gpu=True).close()

    found = {k: v for k, v in lines(spool)[0]["metrics"].items() if "gpu" in k}
    assert found == pytest.approx({
        "system/gpu_0_utilization_percentage": 35.0,
        "system/gpu_0_memory_usage_megabytes": 1000 * 2**20 / 1e6,
        "system/gpu_0_power_usage_watts": 71.5,
        "system/gpu_1_memory_usage_megabytes": 20 * 2**20 / 1e6,
    })  # fmt: skip
    assert "--id=GPU-4f" in (program.parent / "asked").read_text().split()


def test_a_machine_without_nvidia_smi_is_measured_all_the_same(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    MachineUse(spool, gpu=True).close()

    assert len(lines(spool)[0]["metrics"]) == 4
