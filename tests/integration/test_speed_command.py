"""The speed benchmark from its command on, small and on a CPU, without TRL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import speed_world

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.long


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
    assert found.keys() == set(speed_world.works_of("tiny"))
    assert {tuple(words[:3]) for words in found.values()} == {("tiny", "ragged", "ours")}
    results = {work: json.loads(words[4].replace("'", '"')) for work, words in found.items()}
    for work, result in results.items():
        times = result["phases"].values() if work.startswith("ppo") else result["steps"]
        assert min(times) > 0
        assert result["peak"] > 2**20
    assert all(results[work]["flops"] > 0 for work in results if work.startswith("ppo"))
    assert {path: path.stat().st_mtime_ns for path in pages} == pages, "nothing is to be written"
