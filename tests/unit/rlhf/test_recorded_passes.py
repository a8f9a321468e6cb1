"""Recorded passes give the hidden states and gradients of plain ones, and keep Python out.

There is no GPU here: a pretended graph repeats what was asked of torch (tests/recorded_world.py).
tests/integration/test_gpu_passes.py has a real one.
"""

import pytest
import torch
from torch import nn

from rlhf import lower_gradient_sums, recorded_passes, reward, sft, trunk_passes
from rlhf.compute import Compute
from rlhf.optimisers import Optimiser, Training
from rlhf.params.reward import RewardParams
from rlhf.params.sft import SFTParams
from rlhf.pass_recordings import Recorder
from rlhf.recomputed_layers import recompute_layers
from rlhf.recorded_passes import FAMILIES
from rlhf.seeding import Seeds
from rlhf.sharding import Held
from tests import families, packed_rows, ppo_world, recorded_world, tiny
from tests.recorded_world import (
    ALL,
    CPU,
    MASKS,
    PRETENDED,
    SHORTER,
    Calls,
    captured,
    inputs,
    plain,
    recorded,
)  # fmt: skip
from tests.tiny import PAD
from tests.training_steps import EXAMPLES, PAIRS, PLAIN

nothing_recorded = pytest.fixture(autouse=True)(recorded_world.forgotten)
PRECISIONS = [Compute(CPU, "float32"), Compute(CPU, "bfloat16")]


@pytest.fixture(autouse=True)
def masks_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed rows have a mask, which they need on a CPU no more."""
    packed_rows.with_masks(monkeypatch)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(trunk: nn.Module, device: torch.device) -> Recorder | None:
        return PRETENDED if recorded_passes._trunk(trunk).is_known else None

    monkeypatch.setattr(trunk_passes, "recorder", chosen)


def trained(lm, hidden, ids, mask, weights, compute: Compute):
    """Hidden states of real tokens, and the gradients of something of them."""
    lm.zero_grad()
    with compute.autocast():
        states = hidden(lm, ids, mask)
    (states.float() * weights)[mask].sum().backward()
    return states[mask].detach(), {name: w.grad.clone() for name, w in lm.named_parameters()
                                   if w.grad is not None}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("compute", PRECISIONS, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", sorted(FAMILIES - {"mistral"}))
def test_a_recorded_pass_gives_what_a_plain_one_gives(
    family: str, recompute: bool, compute: Compute, mask: torch.Tensor, assert_close
) -> None:
    """Of each pass other ids. Sums over a padded row may be added up in another order."""
    lm = families.policy(family)
    if recompute:
        recompute_layers(lm)
    calls = Calls(lm.base_model.layers[0])
    exact = compute.precision == "float32"
    for turn in range(5):
        ids, weights = inputs(turn, mask)
        before = calls.number
        hidden, gradients = trained(lm, recorded, ids, mask, weights, compute)
        asked = calls.number - before
        expected, wanted = trained(lm, plain, ids, mask, weights, compute)
        if exact:
            assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
        else:
            assert torch.allclose(hidden, expected, rtol=0.05, atol=0.05)
        assert gradients.keys() == wanted.keys()
        for name, found in gradients.items():
            gap = (found - wanted[name]).norm() / wanted[name].norm()
            assert gap < (1e-5 if exact else 0.03), name
        assert (asked == 0) == (turn >= 2), "the first is plain, the second is recorded"


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", sorted(FAMILIES - {"mistral"}))
def test_recorded_backward_passes_add_up_in_float32_where_a_gpu_does(
    family: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two micro-batches of a step in bfloat16, recorded and not."""
    monkeypatch.setattr(lower_gradient_sums, "DEVICES", ("cpu",))
    monkeypatch.setattr(lower_gradient_sums, "SMALLEST", 1)
    lm, lower = families.policy(family), Compute(CPU, "bfloat16")
    if recompute:
        recompute_layers(lm)
    calls = Calls(lm.base_model.layers[0])

    def step(hidden, turn: int) -> dict[str, torch.Tensor]:
        lm.zero_grad()
        with Held(lm).step(lower):
            for part in (0, 1):
                ids, weights = inputs(2 * turn + part, SHORTER)
                with lower.autocast():
                    states = hidden(lm, ids, SHORTER)
                (states.float() * weights)[SHORTER].sum().backward()
        return {name: w.grad.clone() for name, w in lm.named_parameters() if w.grad is not None}

    for turn in range(3):
        before = calls.number
        found = step(recorded, turn)
        asked = calls.number - before
        wanted = step(plain, turn)
        assert found.keys() == wanted.keys()
        for name, gradient in found.items():
            assert (gradient - wanted[name]).norm() <= 0.03 * wanted[name].norm(), name
        assert (asked == 0) == (turn >= 1)


def test_tokens_that_lengthen_a_row_see_themselves_and_nobody_sees_them() -> None:
    """A query that sees nothing is NaN in some kernels, and NaN times a gradient of 0 is NaN."""
    causal = torch.ones(3, 3, dtype=torch.bool).tril().expand(2, 1, 3, 3)
    ids, positions = torch.full((2, 3), 7), torch.arange(3).expand(2, 3)
    longer, visible, places = recorded_passes._lengthened(ids, causal, positions)

    assert (longer.shape, places.shape, visible.shape) == ((2, 32), (2, 32), (2, 1, 32, 32))
    assert torch.equal(visible[:, :, :3, :3], causal)
    expected = torch.eye(32, dtype=torch.bool)
    expected[:3, :3] = False
    rest = visible.clone()
    rest[:, :, :3, :3] = False
    assert torch.equal(rest, expected.expand(2, 1, 32, 32))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_without_gradients_too(mask: torch.Tensor, assert_close) -> None:
    lm = tiny.llama()
    calls = Calls(lm.model.layers[0])
    with torch.no_grad():
        for turn in range(4):
            ids, _ = inputs(turn, mask)
            before = calls.number
            found = recorded(lm, ids, mask)
            asked = calls.number - before
            assert_close(found[mask], plain(lm, ids, mask)[mask], rtol=1e-5, atol=1e-5)
            assert (asked == 0) == (turn >= 2)


def test_a_recording_stands_for_its_own_kind_of_pass(assert_close) -> None:
    """With a mask and without, in either precision: of the same shape, each three times in turn."""
    lm = tiny.llama()
    with torch.no_grad():
        for turn in range(3):
            for mask in (SHORTER.flip(1), ALL):
                for compute in PRECISIONS:
                    ids, _ = inputs(turn, mask)
                    with compute.autocast():
                        found = recorded(lm, ids, mask)[mask]
                        expected = plain(lm, ids, mask)[mask]
                    assert_close(found, expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_result_stays_when_the_pass_is_repeated() -> None:
    lm = tiny.llama()
    batches = [inputs(number, ALL)[0] for number in range(4)]
    results = [recorded(lm, ids, ALL) for ids in batches]

    for ids, found in zip(batches, results, strict=True):
        assert torch.allclose(found, plain(lm, ids, ALL), rtol=1e-5, atol=1e-5)


def test_a_step_of_weights_is_seen(assert_close) -> None:
    """Recordings read the weights where they lie, and gradients of several batches add up."""
    lm = tiny.llama()
    optimiser = torch.optim.AdamW(lm.parameters(), lr=0.1, fused=True)
    twin = tiny.llama()
    other = torch.optim.AdamW(twin.parameters(), lr=0.1, fused=True)
    for step in range(3):
        for batch in range(3):
            ids, weights = inputs(10 * step + batch, SHORTER)
            for model, hidden in ((lm, recorded), (twin, plain)):
                (hidden(model, ids, SHORTER) * weights)[SHORTER].sum().backward()
        for one, two in zip(lm.parameters(), twin.parameters(), strict=True):
            if two.grad is not None:
                gap = (one.grad - two.grad).norm() / two.grad.norm()
                assert gap < 1e-3, "weights drift apart by rounding"
        for each in (optimiser, other):
            each.step()
            each.zero_grad(set_to_none=True)


def test_gradients_that_are_there_already_are_added_to(assert_close) -> None:
    lm = tiny.llama()
    ids, weights = inputs(0, ALL)
    for _ in range(3):
        lm.zero_grad()
        (recorded(lm, ids, ALL) * weights).sum().backward()
    once = {name: w.grad.clone() for name, w in lm.named_parameters() if w.grad is not None}
    for name, weight in lm.named_parameters():
        weight.grad = torch.ones_like(weight) if name in once else None
    (recorded(lm, ids, ALL) * weights).sum().backward()
    for name, weight in lm.named_parameters():
        if name in once:
            assert_close(weight.grad, once[name] + 1, rtol=1e-5, atol=1e-5)


def test_two_passes_that_are_open_at_once_do_not_share_memory(assert_close) -> None:
    """The second one is not repeated, since its activations would overwrite the first one's."""
    lm = tiny.llama()
    batches = [inputs(number, ALL) for number in range(4)]

    def gradients(hidden) -> torch.Tensor:
        lm.zero_grad()
        states = [hidden(lm, ids, ALL) for ids, _ in batches]
        parts = [(each * w).sum() for each, (_, w) in zip(states, batches, strict=True)]
        sum(parts).backward()
        return lm.model.layers[0].mlp.up_proj.weight.grad.clone()

    for _ in range(3):
        gradients(recorded)
    assert_close(gradients(recorded), gradients(plain), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "value_model", ["separate", pytest.param("shared", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "packing", [pytest.param(False, marks=pytest.mark.long), True], ids=["padded", "packed"]
)
@pytest.mark.parametrize("compute", PRECISIONS, ids=["float32", "bfloat16"])
def test_a_round_of_ppo_is_the_same(
    compute: Compute, packing: bool, value_model: str, monkeypatch: pytest.MonkeyPatch, assert_close
) -> None:
    """In bfloat16 what is padded rounds otherwise, so there the self-checks and the end count."""
    settings = ppo_world.params(
        packing=packing, value_model=value_model, micro_batch_size=4, iterations=3
    )

    def metrics() -> list[list[float]]:
        found = ppo_world.run(ppo_world.fresh(settings), settings, compute=compute)
        return ppo_world.numbers_of(found)

    expected = metrics()
    monkeypatch.setattr(trunk_passes, "recorder", lambda trunk, device: PRETENDED)
    found = metrics()

    assert captured
    if compute.precision == "float32":
        assert_close(found, expected, rtol=1e-3, atol=1e-4)
    else:
        assert len(found) == len(expected)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_sft_and_reward_training_learn_the_same(
    packing: bool, monkeypatch: pytest.MonkeyPatch, assert_close
) -> None:
    def losses() -> list[float]:
        found = []
        model = tiny.llama()
        params = SFTParams(epochs=3, batch_size=3, packing=packing, max_tokens=16, optimiser=PLAIN)
        training = Training(model, Optimiser(PLAIN, model.named_parameters()))
        compute, seeds = PRECISIONS[0], Seeds(0)
        steps = sft.train(training, EXAMPLES, params, pad_id=PAD, compute=compute, seeds=seeds)
        found += [step.loss for step in steps]
        scorer = tiny.reward_model()
        asked = RewardParams(epochs=3, batch_size=3, packing=packing, optimiser=PLAIN)
        training = Training(scorer, Optimiser(PLAIN, scorer.named_parameters()))
        made = reward.train(training, PAIRS, asked, pad_id=PAD, compute=compute, seeds=seeds)
        return found + [step.loss for step in made]

    found = losses()
    assert captured
    monkeypatch.setattr(trunk_passes, "recorder", lambda trunk, device: None)

    assert_close(found, losses(), rtol=1e-4, atol=1e-5)
