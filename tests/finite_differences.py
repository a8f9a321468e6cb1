"""Gradients against central differences, of functions whose backward pass runs once for each graph.

`torch.autograd.gradcheck` runs the backward pass of one graph for each element of its result.
"""

from collections.abc import Callable

import torch
from torch import Tensor

STEP = 1e-6


def assert_gradients_of_finite_differences(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> None:
    """Of a weighted sum of what the function gives, for inputs in double precision."""
    weights = torch.randn_like(function(*inputs))
    found = torch.autograd.grad((function(*inputs) * weights).sum(), inputs)
    for each, gradient in zip(inputs, found, strict=True):
        expected = torch.zeros_like(each)
        for place in range(each.numel()):
            one, other = (
                _moved(function, inputs, each, place, by).mul(weights).sum() for by in (STEP, -STEP)
            )
            expected.view(-1)[place] = (one - other) / (2 * STEP)
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-7)


def _moved(
    function: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    moved: Tensor,
    place: int,
    by: float,
) -> Tensor:
    others = [each.detach().clone() for each in inputs]
    index = next(number for number, each in enumerate(inputs) if each is moved)
    others[index].view(-1)[place] += by
    return function(*others)
