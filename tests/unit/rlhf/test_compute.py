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


THREADS = """
import sys
from rlhf import bits
bits.choose(sys.argv[1])
import torch
from rlhf.compute import make_deterministic
make_deterministic(2)
tiny = torch.full((2**20,), 1000, dtype=torch.int32).view(torch.float32)
print(int((tiny * 1.0).view(torch.int32).count_nonzero()))
"""


@pytest.mark.long
@pytest.mark.parametrize("bits", ["portable", "native"])
def test_denormals_count_as_zero_in_every_thread(bits: str):
    """Each of two threads multiplies half of the numbers, of which every one is 1.4e-42."""
    command = [sys.executable, "-c", THREADS, bits]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)

    assert int(done.stdout) == 0


STEP = """
import resource, sys, torch
from rlhf import compute
if sys.argv[1] != "untold":
    getattr(compute, sys.argv[1])()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
torch.ones(1)
before = resident()
tensors = [torch.ones(int(sys.argv[2]) * 2**18) for _ in range(5)]
del tensors
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
@pytest.mark.parametrize(
    ("told", "mebibytes", "least", "most"),
    [
        pytest.param("keep_all_freed_memory", 20, 80, 110, marks=pytest.mark.long),
        ("keep_all_freed_memory", 100, 490, 510),
        pytest.param("keep_freed_memory", 20, 80, 110, marks=pytest.mark.long),
        ("keep_freed_memory", 100, 0, 20),
        pytest.param("untold", 20, 0, 20, marks=pytest.mark.long),
    ],
)
def test_the_memory_of_a_step_stays_for_the_next(
    told: str, mebibytes: int, least: float, most: float
):
    """Of five tensors of so many MiB; by default glibc gives each of them back."""
    command = [sys.executable, "-c", STEP, told, str(mebibytes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)

    assert least <= int(done.stdout) / 2**20 <= most


LAYERS = """
import resource, sys, torch
from rlhf import compute
getattr(compute, sys.argv[1])()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
torch.ones(1)
before = resident()
layers, parts = [], []
for _ in range(20):
    layers.append(torch.ones(2 * 2**20))
    parts.append(torch.ones(2**18))
layers.clear()
print(resident() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
def test_layers_leave_no_holes_between_the_parts_that_stay():
    """20 layers of 8 MiB that go, and as many parts of 1 MiB that stay."""

    def left(how: str) -> float:
        command = [sys.executable, "-c", LAYERS, how]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        return int(done.stdout) / 2**20

    assert left("keep_freed_memory") > 160
    assert left("give_back_freed_memory") < 40
