"""Passes and heads on a real GPU: a recording repeats what it has recorded, to the bit."""

import pytest
import torch
from torch import nn

from rlhf import cuda_graphs, lower_gradient_sums, recorded_passes
from rlhf.attention_masks import mask_from_host
from rlhf.compute import Compute
from rlhf.head_products import bfloat16_product
from rlhf.lower_gradient_sums import added_in_float32
from rlhf.padding import position_ids
from rlhf.pass_recordings import GPU as RECORDER
from rlhf.ppo_update import PPOTraining
from rlhf.recomputed_layers import recompute_layers
from rlhf.recorded_passes import FAMILIES, recorded_hidden, recorder
from rlhf.rollouts import PPOModels
from rlhf.sharding import Held
from tests import families, ppo_world

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("as_in_a_stage"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

GPU = torch.device("cuda")
PRECISIONS = [Compute(GPU, "float32"), Compute(GPU, "bfloat16")]
ALL = torch.ones(3, 40, dtype=torch.bool)
SHORTER = torch.arange(40) < torch.tensor([[40], [33], [5]])


@pytest.fixture(autouse=True)
def no_weight_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_gradient_sums, "SMALLEST", 1)


@pytest.mark.parametrize("mask", [ALL, SHORTER], ids=["none", "padding"])
@pytest.mark.parametrize("compute", PRECISIONS, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", sorted(FAMILIES - {"mistral"}))
def test_a_recorded_pass_has_the_bits_of_the_first(
    family: str, recompute: bool, compute: Compute, mask: torch.Tensor
) -> None:
    """The first is not recorded, the second is, the others repeat; between them come others."""
    lm = families.policy(family).to(GPU)
    if recompute:
        recompute_layers(lm)
    trunk, positions = lm.base_model, position_ids(mask)
    assert recorder(trunk, GPU) is RECORDER

    def run(seed: int):
        draws = torch.Generator().manual_seed(seed)
        ids = torch.where(mask, torch.randint(3, 14, mask.shape, generator=draws), 0).to(GPU)
        weights = torch.randn(*mask.shape, 32, generator=draws).to(GPU)
        lm.zero_grad()
        with Held(lm).step(compute):
            with mask_from_host(trunk, mask, positions, GPU) as visible, compute.autocast():
                hidden = recorded_hidden(RECORDER, trunk, ids, visible, positions.to(GPU))
            (hidden.float() * weights)[mask.to(GPU)].sum().backward()
        return [hidden.detach().clone(), *(w.grad.clone() for w in trunk.parameters())]

    first = run(0)
    run(1)
    run(2)
    again = run(0)

    assert recorded_passes._trunks[trunk]._passes
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))


@pytest.mark.parametrize("value_model", ["separate", "shared"])
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("compute", PRECISIONS, ids=["float32", "bfloat16"])
def test_a_round_of_ppo_is_the_same_without_recordings(
    compute: Compute, packing: bool, value_model: str, monkeypatch: pytest.MonkeyPatch, assert_close
) -> None:
    settings = ppo_world.params(
        packing=packing, value_model=value_model, micro_batch_size=4, iterations=3
    )

    def metrics() -> list[list[float]]:
        made = ppo_world.fresh(settings).models
        models = PPOModels(made.actor.to(GPU), made.reference.to(GPU), made.reward_model.to(GPU))
        training = PPOTraining(models, settings)
        return ppo_world.numbers_of(ppo_world.run(training, settings, compute=compute))

    found = metrics()
    monkeypatch.setenv(cuda_graphs.SWITCH, "0")
    expected = metrics()

    if compute.precision == "bfloat16":  # What is padded rounds otherwise, so tokens differ.
        assert len(found) == len(expected)
        return
    assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("before", [True, False], ids=["added", "first"])
def test_gradients_of_weights_are_added_up_in_float32(before: bool, assert_close) -> None:
    draws = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 512, bias=False).to(GPU)
    x, given, total = (
        torch.randn(shape, generator=draws).to(GPU) for shape in ((96, 64), (96, 512), (512, 64))
    )
    if before:
        layer.weight.grad = total.clone()
    with added_in_float32(layer), Compute(GPU, "bfloat16").autocast():
        layer(x).backward(given.bfloat16())

    expected = given.bfloat16().double().T @ x.bfloat16().double()
    expected += total.double() if before else 0
    assert_close(layer.weight.grad.double(), expected, rtol=1e-5, atol=1e-3)


def test_the_head_adds_up_in_float32(assert_close) -> None:
    draws = torch.Generator().manual_seed(0)
    rows, weight, given = (
        torch.randn(shape, generator=draws) for shape in ((96, 64), (512, 64), (96, 512))
    )
    lower = [each.bfloat16().double() for each in (rows, weight, given)]
    rows, weight = rows.to(GPU).requires_grad_(), weight.to(GPU).requires_grad_()
    logits = bfloat16_product(rows, weight)
    logits.backward(given.to(GPU))

    assert logits.dtype == torch.float32
    assert_close(logits.detach().cpu(), lower[0] @ lower[1].T, rtol=1e-5, atol=1e-4)
    assert_close(rows.grad.cpu(), lower[2] @ lower[1], rtol=1e-5, atol=1e-3)
    assert_close(weight.grad.cpu(), lower[2].T @ lower[0], rtol=1e-5, atol=1e-3)
