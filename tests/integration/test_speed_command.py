"""The speed benchmark from its command on, small and on a CPU, without TRL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import speed_ours, speed_world
from rlhf import ppo
from rlhf.cuda_graphs import SWITCH
from tests.tiny import COMPUTE

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is measured")
def test_without_a_gpu_a_tiny_model_shows_that_all_works_run(tmp_path: Path):
    pages = {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("benchmarks*")}
    command = [sys.executable, "-m", "benchmarks.speed", "--device", "cuda", "--sizes", "135M"]
    done = subprocess.run(
        [*command, "--lengths", "ragged", "--runs", "1", "--without-trl"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith("torch sees no GPU: a tiny model on the CPU")
    found = {line.split()[3]: line.split(maxsplit=4) for line in lines}
    works = {*speed_world.WORKS, *speed_world.PADDED_WORKS}
    assert found.keys() == works
    assert {tuple(words[:3]) for words in found.values()} == {("tiny", "ragged", "ours")}
    results = {work: json.loads(words[4].replace("'", '"')) for work, words in found.items()}
    for work, result in results.items():
        times = result["phases"].values() if work.startswith("ppo") else result["steps"]
        assert min(times) > 0
        assert result["peak"] > 2**20
    assert all(results[work]["flops"] > 0 for work in results if work.startswith("ppo"))
    assert {path: path.stat().st_mtime_ns for path in pages} == pages, "nothing is to be written"


@pytest.mark.parametrize("work", ["ppo-shared", "ppo-separate-padded"])
def test_operations_of_one_pass_stand_for_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
):
    update, counter = ppo.update, FlopCounterMode(display=False)
    monkeypatch.setattr(ppo, "draw_table", ppo.draw_table)  # To have it back.
    monkeypatch.setenv(SWITCH, "0")
    speed_world.write_world(tmp_path, "tiny", "ragged")
    rows = json.loads((tmp_path / "rows.json").read_text())
    iterations = speed_ours.ppo_iterations(tmp_path, rows, "tiny", COMPUTE, work)

    def whole(*args: object, **kwargs: object) -> object:
        with counter:
            return update(*args, **kwargs)

    monkeypatch.setattr(ppo, "update", whole)
    next(iterations)
    monkeypatch.setattr(ppo, "update", update)
    assert speed_ours.count(iterations) == pytest.approx(counter.get_total_flops(), rel=0.02)
