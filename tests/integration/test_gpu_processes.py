"""Processes that NCCL joins compute what one does that nothing joins; two of them need two GPUs."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import stage_world

DEVICE = "cuda"
LARGEST_GAP = 1e-5
"""Of the gradient of several processes, as a share of the gradient of one."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees no two GPUs here")


def gradients(folder: Path, processes: int) -> dict[str, list[Tensor]]:
    """What `tests.steps_on_device` writes; 0 processes are one that nothing joins."""
    path = folder / f"{processes}.pt"
    launcher = ["-m", "tasks.running.agent", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes else []), "-m", "tests.steps_on_device"]
    done = subprocess.run(
        [*command, DEVICE, str(path)], cwd=stage_world.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Tensor]] = torch.load(path)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Tensor]:
    return gradients(tmp_path_factory.mktemp("alone"), 0)["whole"]


def gap(found: list[Tensor], expected: list[Tensor]) -> float:
    """Of the first step; later ones start from weights that differ in their last digits."""
    assert len(found) == len(expected) > 1
    return float((found[0] - expected[0]).norm() / expected[0].norm())


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=two_gpus)])
def test_processes_that_are_joined_have_the_gradients_of_one(
    tmp_path: Path, alone: list[Tensor], processes: int
) -> None:
    of = partial(gap, expected=alone)
    first, second = (gradients(tmp_path, processes) for _ in range(2))

    (total,) = first["sum"]
    assert torch.equal(total, processes * torch.arange(4.0 * processes))
    assert of(first["whole"]) <= (0 if processes == 1 else LARGEST_GAP)
    assert of(first["divided"]) <= LARGEST_GAP
    for name, noted in first.items():
        assert all(map(torch.equal, noted, second[name])), f"{name}: other bytes the second time"
