"""The models of a round reach the device in the precision in which they are computed."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf.actor_critic import build_actor_critic, save_value_function
from rlhf.compute import Compute
from rlhf.ensembles import load_scorer
from rlhf.frozen import cast_frozen, linear_layers, restore_frozen
from rlhf.lora import MARK, add_adapter
from rlhf.model_folders import save_model
from rlhf.params.lora import LoraParams
from rlhf.ppo_models import load_models
from tests import ppo_world, tiny
from tests.tiny import COMPUTE, PROMPTS

DEVICE = torch.device("meta")
"""A device that is none: what goes there loses its numbers, and keeps shape and type."""
LORA = LoraParams(rank=2, alpha=4, targets=[])


class Arrived(TorchDispatchMode):
    """Notes the shapes of the float32 tensors that come to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and found.device == DEVICE:
            self.shapes |= {tuple(found.shape)} if found.dtype == torch.float32 else set()
        return found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """SFT and a reward model."""
    sft, reward = tmp_path / "sft", tmp_path / "reward"
    save_model(tiny.llama(), sft)
    save_model(tiny.classifier(), reward)
    return sft, reward


def load(folders: tuple[Path, Path], compute: Compute, **changes):
    sft, reward = folders
    draws = torch.Generator().manual_seed(1)
    params = ppo_world.params(**changes)
    return load_models(sft, sft, reward, params, compute, prompts=PROMPTS, draws=draws)


def matrices(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: layer.weight for name, layer in linear_layers(model) if MARK not in name}


def test_with_an_adapter_no_matrix_comes_to_the_device_in_float32(folders):
    settings = {"lora": LORA, "value_model": "shared", "value_init": "zero"}
    with Arrived() as arrived:
        models = load(folders, Compute(DEVICE, "bfloat16"), **settings)

    frozen = matrices(models.actor) | matrices(models.reward_model)
    assert {weight.device for weight in frozen.values()} == {DEVICE}
    assert {weight.dtype for weight in frozen.values()} == {torch.bfloat16}
    assert not {tuple(weight.shape) for weight in frozen.values()} & arrived.shapes
    # Embeddings, norms, heads and the adapter do.
    assert tuple(models.actor.lm.get_input_embeddings().weight.shape) in arrived.shapes


def test_a_value_model_starts_from_the_digits_of_the_reward_model(folders):
    models = load(folders, Compute(COMPUTE.device, "bfloat16"), value_init="reward")
    whole = matrices(load_scorer(folders[1], COMPUTE.device))
    trained = matrices(models.actor.value_trunk)
    assert len(trained) == len(whole)
    for mine, theirs in zip(trained.values(), whole.values(), strict=True):
        assert torch.equal(mine, theirs)
    assert {weight.dtype for weight in matrices(models.reward_model).values()} == {torch.bfloat16}


@pytest.mark.parametrize("carried", [True, False])
def test_a_round_goes_on_with_the_value_function_of_its_policy_where_it_may(
    folders, tmp_path: Path, carried: bool
):
    """Else it begins at 0, as without one beside the policy."""
    start, (sft, reward) = tmp_path / "start", folders
    before = build_actor_critic(tiny.llama(3), reward_model=None, separate=True)
    torch.nn.init.normal_(before.value_head.weight, generator=torch.Generator().manual_seed(1))
    save_model(before.lm, start)
    save_value_function(before, start)
    params = ppo_world.params(value_carry=carried)
    draws = torch.Generator().manual_seed(1)

    models = load_models(start, sft, reward, params, COMPUTE, prompts=PROMPTS, draws=draws)

    head = before.value_head.weight if carried else torch.zeros_like(before.value_head.weight)
    assert torch.equal(models.actor.value_head.weight, head)


def test_models_that_read_packed_rows_are_whole_afterwards(folders):
    models = load(folders, COMPUTE, packing=True, value_init="reward")
    for name, weight in tiny.llama().state_dict().items():
        assert torch.equal(models.actor.lm.state_dict()[name], weight)
    assert models.actor.lm.lm_head.weight is models.actor.lm.get_input_embeddings().weight


def test_digits_are_given_back_where_the_layer_lies():
    lm = tiny.llama()
    add_adapter(lm, LORA, torch.Generator().manual_seed(1))
    cast_frozen(lm, Compute(DEVICE, "bfloat16"))
    lm.to(DEVICE)
    restore_frozen(lm, tiny.llama)
    assert {weight.dtype for weight in lm.parameters()} == {torch.float32}
    assert {weight.device for weight in lm.parameters()} == {DEVICE}
