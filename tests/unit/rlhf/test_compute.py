"""What `make_deterministic` does to the process."""

import torch

from rlhf.compute import make_deterministic

TINY = 1e-39
"""Below the smallest normal float32, 1.2e-38."""


def test_denormals_count_as_zero_and_the_smallest_normal_number_does_not():
    assert (torch.full((16,), TINY) * 1.0).sum() > 0

    make_deterministic(torch.get_num_threads())

    assert torch.equal(torch.full((16,), 1e-20) * 1e-19, torch.zeros(16))
    assert (torch.full((16,), 1.2e-38) * 1.0).min() > 0
