"""What becomes of memory that a stage has freed."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
STAGE = """
import resource, sys, torch
from tasks.params.loading import RunParams
from tasks.running.models import start_compute
run = RunParams(device="cpu", sharded=sys.argv[1] == "sharded")
start_compute(run, training=sys.argv[1] != "sampling")
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
torch.ones(1)
for mebibytes in (100, 20):
    before = resident()
    tensors = [torch.ones(mebibytes * 2**18) for _ in range(5)]
    del tensors
    print(round((resident() - before) / 2**20 / mebibytes))
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
@pytest.mark.parametrize(
    ("kind", "large", "small"),
    [
        ("training", 5, 0),
        ("sampling", 0, 5),
        ("sharded", 0, 0),
    ],
)
def test_a_training_keeps_every_tensor_and_divided_weights_none(kind: str, large: int, small: int):
    """Tensors that stay of five: of 100 MiB, and then of 20, for which a training has room."""
    command = [sys.executable, "-c", STAGE, kind]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert [int(line) for line in done.stdout.split()] == [large, small]
