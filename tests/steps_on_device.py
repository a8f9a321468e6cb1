"""SFT's steps on a tiny model, alone or as one of the processes that a launcher has started.

    python -m tests.steps_on_device DEVICE FILE

The first process writes the gradients of all steps, by whole weights. Of those that are joined it
also writes those by divided weights, and a sum: torch and we skip what one process need not do.
"""

import os
import sys
from pathlib import Path

import torch

from rlhf import distributed
from rlhf.compute import Compute
from tasks.workspace.accelerators import sole_accelerator
from tests.training_steps import sft_steps


def main(device: str, path: Path) -> None:
    """Entry point."""
    with sole_accelerator(device):
        compute = Compute(torch.device(device), "float32")
        if "RANK" in os.environ:
            distributed.join(cuda=device == "cuda")
            found = {"sum": [summed(compute.device)]}
            found["divided"] = sft_steps(compute, divided=True)[0]
        else:
            found = {}
        found["whole"] = sft_steps(compute)[0]
        if distributed.rank() == 0:
            torch.save(
                {name: [each.cpu() for each in noted] for name, noted in found.items()}, path
            )
        distributed.leave()


def summed(device: torch.device) -> torch.Tensor:
    """0, 1, 2 and so on from each process, added up by all of them, each a part."""
    numbers = torch.arange(4.0 * distributed.world(), device=device)
    found = torch.empty_like(numbers)
    distributed.gather_parts(distributed.part_of_total(numbers), found)
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
