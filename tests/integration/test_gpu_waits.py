"""torch itself says what makes the host wait for a GPU: one thing a step (as in test_waits.py)."""

import warnings
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch

from rlhf import ppo, sft
from rlhf.batches import PPOBatch
from rlhf.compute import Compute
from rlhf.generation import sample_responses
from rlhf.optimisers import Optimiser, Training
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams
from rlhf.ppo_update import PPOTraining, update
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from tests import ppo_world, tiny
from tests.tiny import EOS, PAD, PROMPTS
from tests.training_steps import EXAMPLES, PLAIN

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("as_in_a_stage"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

COMPUTE = Compute(torch.device("cuda"), "float32")


def waits(work: Callable[[], object]) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(one.message) for one in seen)


def test_torch_notices_a_wait() -> None:
    numbers = torch.ones(3, device="cuda")

    assert waits(lambda: numbers.sum()) == 0
    assert waits(lambda: float(numbers.sum())) == 1


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_each_further_step_of_sft_is_one_wait(packing: bool) -> None:
    def train(epochs: int) -> int:
        model = tiny.llama().to(COMPUTE.device)
        params = SFTParams(
            epochs=epochs, batch_size=3, micro_batch_size=1, packing=packing, max_tokens=16,
            optimiser=PLAIN,
        )  # fmt: skip
        training = Training(model, Optimiser(PLAIN, model.named_parameters()))
        steps = sft.train(training, EXAMPLES, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0))
        return waits(lambda: list(steps))

    train(1)  # What is only waited for at first.
    assert train(4) - train(1) == 6


@pytest.mark.parametrize("value_model", ["separate", "shared"])
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_each_further_step_of_ppo_is_one_wait(
    packing: bool, value_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ppo_world.params(micro_batch_size=2, packing=packing, value_model=value_model)
    batches: list[PPOBatch] = []

    def noted(training, batch, *args, **kwargs):
        batches.append(batch)
        return update(training, batch, *args, **kwargs)

    monkeypatch.setattr(ppo, "update", noted)
    ppo_world.run(ppo_world.fresh(settings), settings, stop=1)
    tensors = {one.name: getattr(batches[0], one.name) for one in fields(PPOBatch)}
    batch = PPOBatch(**{name: tensor.to(COMPUTE.device) for name, tensor in tensors.items()})

    def train(epochs: int) -> int:
        models = ppo_world.fresh(settings).models
        there = PPOModels(models.actor.to(COMPUTE.device), models.reference, models.reward_model)
        chosen = ppo_world.params(
            micro_batch_size=2, packing=packing, value_model=value_model, epochs=epochs
        )
        training = PPOTraining(there, chosen)
        return waits(lambda: update(training, batch, chosen, 0, compute=COMPUTE, seeds=Seeds(0)))

    train(1)
    assert train(4) - train(1) == 6


@pytest.mark.parametrize("prompts", [PROMPTS, [[5, 6, 7]] * 4], ids=["padded", "unpadded"])
def test_each_further_token_is_one_wait(prompts: list[list[int]]) -> None:
    lm = tiny.llama().to(COMPUTE.device)
    ids, mask = (each.to(COMPUTE.device) for each in pad_left(prompts, PAD))

    def sample(tokens: int) -> int:
        draws = torch.full((4, tokens), 1 - 2**-40, dtype=torch.float64)
        settings = SamplingParams(max_new_tokens=tokens)
        return waits(
            lambda: sample_responses(
                lm, ids, mask, settings, stop_ids=[EOS], pad_id=PAD, draws=draws
            )
        )

    sample(8)
    assert sample(24) - sample(8) == 16
