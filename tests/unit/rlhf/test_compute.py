"""What `make_deterministic` does to the process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlhf.compute import make_deterministic

ROOT = Path(__file__).resolve().parents[3]

TINY = 1e-39
"""Below the smallest normal float32, 1.2e-38."""


def test_denormals_count_as_zero_and_the_smallest_normal_number_does_not():
    assert (torch.full((16,), TINY) * 1.0).sum() > 0

    make_deterministic(torch.get_num_threads())

    assert torch.equal(torch.full((16,), 1e-20) * 1e-19, torch.zeros(16))
    assert (torch.full((16,), 1.2e-38) * 1.0).min() > 0


STEPS = """
import resource, sys, torch
from rlhf.compute import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def step():
    return sum((torch.ones(2**19) for _ in range(20)), start=torch.ones(2**19)).sum().item()
for _ in range(3): step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5): step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
def test_a_step_finds_the_memory_of_the_last_one():
    """A page is 4,096 bytes: one tensor of 2 MiB, taken anew, is 512 faults.

    What else the process asks for can move a tensor or two once; memory that is given back is taken
    anew in every one of the five steps.
    """

    def faults(which: str) -> int:
        command = [sys.executable, "-c", STEPS, which]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        return int(done.stdout)

    assert faults("kept") <= 2 * 512
    assert faults("given back") >= 5 * 512
