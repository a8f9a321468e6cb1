"""What the micro-batches of a step share: one cast of each weight, and one reading of metrics."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf.compute import Compute
from rlhf.distributed import totals_and
from tests.tiny import COMPUTE
from tests.training_steps import ppo_steps, reward_steps, sft_steps

BFLOAT16 = Compute(torch.device("cpu"), "bfloat16")
Steps = Callable[..., tuple[list[torch.Tensor], list[float]]]
TRAININGS = [
    pytest.param(sft_steps, {}, 2, id="sft"),
    pytest.param(sft_steps, {"packing": True}, 2, id="sft-packed"),
    pytest.param(reward_steps, {}, 2, id="reward"),
    pytest.param(ppo_steps, {}, 3, id="ppo"),
    pytest.param(
        ppo_steps,
        {"value_model": "shared", "packing": True, "entropy_coef": 0.1},
        3,
        id="shared",
        marks=pytest.mark.long,
    ),
]
"""With how often a weight may be cast: once in each of two steps, and once in a rollout."""


class Noted(TorchDispatchMode):
    """How often each weight is cast to bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.casts = Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        cast = func is torch.ops.aten._to_copy.default and kwargs.get("dtype") is torch.bfloat16
        if cast and isinstance(args[0], nn.Parameter):
            self.casts[id(args[0])] += 1
        return func(*args, **kwargs)


@pytest.mark.parametrize(("steps", "changes", "most"), TRAININGS)
def test_a_weight_is_cast_once_in_a_step_and_its_gradient_keeps_its_bits(
    monkeypatch: pytest.MonkeyPatch, steps: Steps, changes: dict[str, Any], most: int
) -> None:
    with Noted() as noted:
        gradients, metrics = steps(BFLOAT16, micro_batch_size=1, **changes)
    assert noted.casts
    assert max(noted.casts.values()) == most
    # The plain path: each micro-batch casts for itself.
    monkeypatch.setattr(Compute, "keeping_casts", lambda _: contextlib.nullcontext())
    with Noted() as plain:
        expected, same = steps(BFLOAT16, micro_batch_size=1, **changes)
    assert max(plain.casts.values()) > most
    assert metrics == same
    assert len(gradients) == len(expected) > 1
    assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True))


@pytest.mark.parametrize(("steps", "changes", "_most"), TRAININGS)
def test_metrics_are_read_once_a_step_however_many_its_micro_batches(
    monkeypatch: pytest.MonkeyPatch, steps: Steps, changes: dict[str, Any], _most: int
) -> None:
    item, count = torch.Tensor.item, [0]

    def counted(tensor: torch.Tensor) -> Any:
        count[0] += 1
        return item(tensor)

    monkeypatch.setattr(torch.Tensor, "item", counted)
    found = []
    for size in (1, 3):
        count[0] = 0
        steps(COMPUTE, micro_batch_size=size, **changes)
        found.append(count[0])
    assert found[0] == found[1]


def test_backward_passes_compute_in_float32_where_their_forward_did() -> None:
    """A product of float32 tensors outside autocast has a float32 gradient, casts kept or not."""
    one = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with BFLOAT16.keeping_casts():
        (one @ one).sum().backward()
    kept, one.grad = one.grad, None
    (one @ one).sum().backward()
    assert torch.equal(kept, one.grad)


def test_numbers_of_micro_batches_are_added_in_double_precision_in_their_order() -> None:
    parts = [[torch.tensor(0.1), torch.tensor(1e8)], [torch.tensor(0.2), torch.tensor(1.0)]]
    tenth, fifth = torch.tensor([0.1, 0.2]).tolist()
    assert totals_and(parts, 2, ()) == ([tenth + fifth, 1e8 + 1.0], [])
    # A process whose share of the rows is empty.
    assert totals_and([], 3, ()) == ([0.0, 0.0, 0.0], [])
