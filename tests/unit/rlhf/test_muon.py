"""Muon against torch's own and against the formula in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from rlhf.muon import Muon, orthogonalise
from rlhf.optimisers import Optimiser
from rlhf.params.optimiser import OptimiserParams

SHAPES = [(6, 6), (4, 9), (9, 4), (6, 6)]


def weights_and_gradients(seed: int, steps: int = 3):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(shape, generator=generator) for shape in SHAPES]
    gradients = [
        [torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(steps)
    ]
    return weights, gradients


def run(build, weights, gradients):
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimiser = build(parameters)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimiser.step()
    return [parameter.data for parameter in parameters]


def test_muon_is_torchs_muon_within_its_bfloat16_rounding():
    """torch iterates in bfloat16 (8 bits): each update may differ by about a hundredth of it."""
    weights, gradients = weights_and_gradients(0)
    ours = run(lambda p: Muon(p, lr=0.02, weight_decay=0.1), weights, gradients)
    theirs = run(
        lambda p: torch.optim.Muon(p, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        weights,
        gradients,
    )
    for start, mine, other in zip(weights, ours, theirs, strict=True):
        moved = (other - start).norm()
        assert (mine - other).norm() < 0.02 * moved


def reference(weights, gradients, *, lr, decay):
    """The formula of the module's docstring, matrix by matrix, in float64."""
    result = [weight.double().numpy().copy() for weight in weights]
    momenta = [np.zeros(shape) for shape in SHAPES]
    for step in gradients:
        for index, gradient in enumerate(g.double().numpy() for g in step):
            momenta[index] = 0.95 * momenta[index] + 0.05 * gradient
            direction = 0.05 * gradient + 0.95 * momenta[index]
            x = direction / np.linalg.norm(direction)
            for _ in range(5):
                x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
            scale = 0.2 * lr * max(x.shape) ** 0.5
            result[index] = (1 - lr * decay) * result[index] - scale * x
    return result


def test_muon_is_the_published_formula(assert_close):
    weights, gradients = weights_and_gradients(1)
    found = run(lambda p: Muon(p, lr=0.02, weight_decay=0.1), weights, gradients)
    for mine, expected in zip(
        found, reference(weights, gradients, lr=0.02, decay=0.1), strict=True
    ):
        assert_close(mine, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(5, 8, 8), (2, 4, 16), (2, 16, 4)])
def test_five_steps_bring_the_singular_values_near_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    # Directions of nearly no weight need more than five steps: those below 0.03 are not judged.
    before = torch.linalg.svdvals(matrices) / matrices.flatten(1).norm(dim=1)[:, None]
    judged = values[before > 0.03]
    assert judged.min() > 0.6
    assert judged.max() < 1.25


def test_each_matrix_of_a_stack_is_its_own(assert_close):
    first, second = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(3))
    both = orthogonalise(torch.stack([first, 1000 * second]))
    assert_close(both[0], orthogonalise(first[None])[0], rtol=0, atol=1e-5)
    assert_close(both[1], orthogonalise(second[None])[0], rtol=0, atol=1e-5)


def test_an_update_has_the_size_of_adamws(assert_close):
    """Root mean square 0.2 lr, whatever the shape (Liu et al. 2025), for orthogonal gradients."""
    for rows, columns in [(16, 16), (8, 32)]:
        gradient = torch.eye(rows, columns)
        moved = run_one(gradient, lr=0.1)
        singular = torch.linalg.svdvals(moved) / (0.2 * 0.1 * max(rows, columns) ** 0.5)
        assert singular.min() > 0.6
        assert singular.max() < 1.25


def run_one(gradient: torch.Tensor, *, lr: float) -> torch.Tensor:
    weight = nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient
    Muon([weight], lr=lr).step()
    return weight.data


def test_a_weight_without_gradient_stays():
    still, moving = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    moving.grad = torch.eye(3)
    Muon([still, moving], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(still.data, torch.ones(3, 3))
    assert not torch.equal(moving.data, torch.ones(3, 3))


def test_weight_decay_is_at_muons_rate_for_its_matrices(assert_close):
    """Beside AdamW, whose rate is next to nothing: 2 (1 - 0.1 * 0.5)."""
    matrix, vector = nn.Parameter(torch.full((2, 2), 2.0)), nn.Parameter(torch.full((2,), 2.0))
    for weight in (matrix, vector):
        weight.grad = torch.zeros_like(weight)
    settings = OptimiserParams(name="muon", lr=1e-30, muon_lr=0.1, weight_decay=0.5)
    Optimiser(settings, [("m", matrix), ("v", vector)]).apply(1.0)
    assert_close(matrix, [[1.9, 1.9], [1.9, 1.9]], rtol=1e-6, atol=0)
    assert_close(vector, [2.0, 2.0], rtol=0, atol=0)


def test_a_gradient_of_zeros_gives_no_nan():
    assert not run_one(torch.zeros(3, 4), lr=0.1).any()
