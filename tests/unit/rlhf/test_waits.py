"""How often the host waits for the device: once in a step, whatever happens in it.

Of one process, with whole weights, of a family that takes a mask as it is (`takes_any_mask`).
"""

import sys
from collections.abc import Iterator
from dataclasses import fields

import pytest
import torch

from rlhf import dpo, ppo, pretrain, reward, sft
from rlhf.attention_masks import TAKE_ANY_MASK
from rlhf.compute import Compute
from rlhf.generation import sample_responses
from rlhf.optimisers import Optimiser, Training
from rlhf.padding import pad_left
from rlhf.params.base import EmbeddedModelParams
from rlhf.params.dpo import DPOParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.reward import RewardParams
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams
from rlhf.ppo_update import PPOTraining, update
from rlhf.rollouts import MicroBatches, collect_rollout
from rlhf.seeding import Seeds
from tests import families, ppo_world, pretended_device, tiny
from tests.pretended_device import DEVICE, OnDevice
from tests.tiny import EOS, PAD, PROMPTS, TOKENS
from tests.training_steps import EXAMPLES, PAIRS

COMPUTE = Compute(DEVICE, "float32")
PLAIN = OptimiserParams(warmup_steps=0)
FAST = {"gpt2", "qwen3"}
"""The families whose steps are counted with every test."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """With what torch asks of a device by its name answered as for a GPU."""
    plain = torch.is_autocast_enabled
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda kind: kind != DEVICE.type and plain(kind)
    )
    monkeypatch.setattr(
        sys.modules["torch.optim.optimizer"],  # torch.optim has no attribute of this name.
        "_get_fused_kernels_supported_devices",
        lambda: ["cpu", DEVICE.type],
    )
    with pretended_device.waits() as found:
        yield found


def test_the_device_notices_what_makes_the_host_wait(waits: list[str]) -> None:
    """Seven questions, and blocking copies; what is sent or stays there without is none."""
    sent = torch.tensor([0.0, 1.0, 1.0, 0.0]).to(DEVICE, non_blocking=True)
    x = torch.arange(4.0, device=DEVICE) * sent
    assert isinstance(x, OnDevice)
    x[torch.tensor([0, 1]).to(DEVICE, non_blocking=True)] += 1
    assert waits == []

    torch.ones(2).to(DEVICE), torch.tensor([1, 2], device=DEVICE)
    assert len(waits) == 2
    bool(x.any()), float(x[0]), x.cpu(), x.tolist(), x[x > 1], x.nonzero(), int(x.sum())
    assert len(waits) == 9
    x[torch.tensor([0])], x.copy_(torch.ones(4)), torch.ones(4).copy_(x)
    assert len(waits) == 12
    matrix, places = x.view(2, 2), torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)
    x.scatter_add_(0, places[:, 0], x[:2].clone())
    assert len(waits) == 12
    matrix.scatter(1, places, matrix), matrix.scatter_add_(1, places, matrix[:, :1].clone())
    assert len(waits) == 14
    with pytest.raises(RuntimeError, match="expected tensors of one device, found those of two"):
        x + torch.ones(4)


@pytest.mark.parametrize(
    "recompute", [False, pytest.param(True, marks=pytest.mark.long)], ids=["kept", "recomputed"]
)
@pytest.mark.parametrize(
    "value_model", ["separate", pytest.param("shared", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "packing", [pytest.param(False, marks=pytest.mark.long), True], ids=["padded", "packed"]
)
@pytest.mark.parametrize("size", [2, pytest.param(8, marks=pytest.mark.long)])
def test_an_update_of_ppo_waits_once_a_step_and_four_times_more(
    size: int, packing: bool, value_model: str, recompute: bool, waits: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """For both masks before, and for both models' weights at the end."""
    settings = ppo_world.params(
        micro_batch_size=size, packing=packing, value_model=value_model, recompute_layers=recompute,
        kl_in="loss", kl_estimator="k2", entropy_coef=0.1,
    )  # fmt: skip
    batches = []
    monkeypatch.setattr(
        ppo,
        "update",
        lambda t, batch, *a, **k: (batches.append(batch), update(t, batch, *a, **k))[1],
    )
    ppo_world.run(ppo_world.fresh(settings), settings, stop=1)
    models = ppo_world.fresh(settings).models
    pretended_device.move(models.actor)
    (batch,) = batches
    there = type(batch)(
        **{field.name: OnDevice(getattr(batch, field.name)) for field in fields(batch)}
    )

    waits.clear()
    metrics = update(
        PPOTraining(models, settings), there, settings, 0, compute=COMPUTE, seeds=Seeds(0)
    )

    assert metrics.optimiser_steps == 4
    assert len(waits) == 4 + 4, waits


def trained(model: torch.nn.Module) -> Training:
    pretended_device.move(model)
    return Training(model, Optimiser(PLAIN, model.named_parameters()))


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_step_of_sft_waits_once(size: int, packing: bool, waits: list[str]) -> None:
    params = SFTParams(
        epochs=2, batch_size=3, micro_batch_size=size, packing=packing, max_tokens=16,
        optimiser=PLAIN,
    )  # fmt: skip
    training = trained(tiny.llama())

    steps = sft.train(training, EXAMPLES, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0))

    assert len(list(steps)) == 4
    assert len(waits) == 4 + 1, waits  # For the weights at the end.


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_step_of_a_reward_model_waits_once(size: int, packing: bool, waits: list[str]) -> None:
    params = RewardParams(
        epochs=2, batch_size=3, micro_batch_size=size, packing=packing, optimiser=PLAIN
    )
    training = trained(tiny.reward_model())

    steps = reward.train(training, PAIRS, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0))

    assert len(list(steps)) == 4
    assert len(waits) == 4 + 1, waits  # For the weights at the end.


def test_a_step_of_dpo_waits_once(waits: list[str]) -> None:
    pairs = [
        dpo.PromptedPair([5, 6], [7, EOS], [8, 9, EOS], 1.0, 1.0),
        dpo.PromptedPair([4], [10, 11, EOS], [12, EOS], 0.0, 2.0),
    ]
    training = trained(tiny.llama())
    reference = dpo.PairLogprobs(torch.zeros(2), torch.zeros(2))

    steps = dpo.train(
        training, pairs, reference, DPOParams(epochs=3, batch_size=2, optimiser=PLAIN),
        pad_id=PAD, compute=COMPUTE, seeds=Seeds(0),
    )  # fmt: skip

    assert len(list(steps)) == 3
    assert len(waits) == 3 + 1, waits


def test_a_step_of_pretraining_waits_once(waits: list[str]) -> None:
    params = EmbeddedModelParams(steps=3, batch_size=2, optimiser=PLAIN)
    training, rows = trained(tiny.llama()), torch.randint(2, 16, (4, 9))

    steps = pretrain.train(training, rows, params, compute=COMPUTE, seeds=Seeds(0))

    assert len(list(steps)) == 3
    assert len(waits) == 3 + 1, waits


@pytest.mark.parametrize("name", [pytest.param("adamw", marks=pytest.mark.long), "muon"])
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.long)
        for name in sorted(TAKE_ANY_MASK - {"llama", "mistral"})
    ],
)
def test_other_families_and_optimisers_wait_once_a_step(
    family: str, name: str, waits: list[str]
) -> None:
    settings = OptimiserParams(warmup_steps=0, name=name)
    params = SFTParams(
        epochs=2, batch_size=3, micro_batch_size=1, packing=True, max_tokens=16, optimiser=settings
    )
    model = families.policy(family)
    pretended_device.move(model)
    training = Training(model, Optimiser(settings, model.named_parameters()))

    steps = sft.train(training, EXAMPLES, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0))

    assert len(list(steps)) == 4
    assert len(waits) == 4 + 1, waits


def sampled(prompts: list[list[int]], draws: torch.Tensor, waits: list[str]) -> int:
    """Waits of a rollout."""
    lm = tiny.llama()
    pretended_device.move(lm)
    ids, mask = pad_left(prompts, PAD)
    waits.clear()
    sample_responses(
        lm, OnDevice(ids), OnDevice(mask), SamplingParams(max_new_tokens=draws.shape[1]),
        stop_ids=[EOS], pad_id=PAD, draws=draws,
    )  # fmt: skip
    return len(waits)


@pytest.mark.parametrize(
    "prompts",
    [PROMPTS, pytest.param([[5, 6, 7]] * 4, marks=pytest.mark.long)],
    ids=["padded", "unpadded"],
)
def test_a_step_of_decoding_waits_once_though_rows_end_and_leave(
    prompts: list[list[int]], waits: list[str]
) -> None:
    """Draws of almost 1 give the last token; with the end token ruled out by them no row ends."""
    going = torch.full((4, 24), 1 - 2**-40, dtype=torch.float64)
    longer, shorter = sampled(prompts, going, waits), sampled(prompts, going[:, :8], waits)
    assert longer - shorter == 16

    ending = going.clone()
    ending[0, 2] = ending[1, 5] = ending[2, 5] = 0.1  # Token 1 of 16, the end token.
    assert sampled(prompts, ending, waits) == longer


@pytest.mark.parametrize(
    "packing", [pytest.param(False, marks=pytest.mark.long), True], ids=["padded", "packed"]
)
@pytest.mark.parametrize("value_model", ["separate", "shared"])
def test_no_micro_batch_of_a_rollout_is_waited_for(
    value_model: str, packing: bool, waits: list[str]
) -> None:
    """However many there are: what they wait for is known once the responses are."""

    def collected(size: int) -> int:
        models = ppo_world.fresh(ppo_world.params(value_model=value_model)).models
        for model in (models.actor, models.reference, models.reward_model):
            pretended_device.move(model)
        waits.clear()
        collect_rollout(
            models, PROMPTS, SamplingParams(max_new_tokens=4), TOKENS,
            micro_batches=MicroBatches(size, packing=packing), compute=COMPUTE,
            draws=torch.full((len(PROMPTS), 4), 0.5, dtype=torch.float64),
        )  # fmt: skip
        return len(waits)

    assert collected(1) == collected(len(PROMPTS))
