"""The value function: where it starts, what it sees, and the way to disk and back."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForSequenceClassification

from rlhf.actor_critic import (
    VALUE_FUNCTION,
    build_actor_critic,
    load_value_function,
    save_value_function,
)
from rlhf.model_folders import ModelFolderError, save_model
from rlhf.padding import pad_right
from rlhf.reward_models import RewardModel
from tests import tiny
from tests.tiny import PAD, PROMPTS
from tests.unit.rlhf.model_world import ANSWERS, padded, widened


def value_actor(*, separate: bool, seed: int = 0):
    """An actor-critic whose value head is not zero."""
    actor = build_actor_critic(tiny.llama(seed), reward_model=None, separate=separate)
    generator = torch.Generator().manual_seed(seed + 50)
    for weight in actor.value_head.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
    return actor


@torch.no_grad()
def test_s03_padding_changes_no_value(assert_close):
    actor = value_actor(separate=True)
    prompt, mask, answer, answer_mask = padded()
    narrow = actor(*padded()).values
    wide = actor(*widened(prompt, mask, left=4, junk=9), *widened(answer, answer_mask, right=3))
    assert_close(wide.values[:, :4][answer_mask], narrow[answer_mask], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("separate", [True, False])
def test_s37_a_value_function_of_its_own_starts_at_zero(separate):
    actor = build_actor_critic(tiny.llama(), reward_model=None, separate=separate)
    assert not actor(*padded()).values.any()


@torch.no_grad()
def test_s37_from_a_reward_model_the_value_after_the_last_token_is_the_normalised_score(
    assert_close,
):
    """V is read before each token, so the value after the end token stands one step behind it."""
    scorer = tiny.reward_model()
    scorer.set_normaliser(0.7, 2.5)
    actor = build_actor_critic(tiny.llama(), reward_model=scorer, separate=True)
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        values = actor(*padded([prompt], [[*answer, 6]])).values[0]
        ids, mask = pad_right([[*prompt, *answer]], PAD)
        assert_close(values[len(answer)], scorer(ids, mask)[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_s37_the_value_of_a_token_does_not_see_the_token(assert_close):
    actor = value_actor(separate=False)
    one = actor(*padded([[5, 6]], [[7, 8, 9]])).values[0]
    other = actor(*padded([[5, 6]], [[7, 8, 2]])).values[0]
    changed = actor(*padded([[5, 6]], [[7, 3, 9]])).values[0]
    assert torch.equal(one, other)
    assert_close(one[:2], changed[:2], rtol=0, atol=1e-6)
    assert (one[2] - changed[2]).abs() > 1e-2


def test_s37_a_separate_value_trunk_is_a_copy_that_shares_no_weight():
    scorer, lm = tiny.reward_model(), tiny.llama()
    for source in (None, scorer):
        actor = build_actor_critic(lm, reward_model=source, separate=True)
        critic = {
            weight.data_ptr()
            for weight in [*actor.value_trunk.parameters(), *actor.value_head.parameters()]
        }
        others = [*lm.parameters(), *scorer.parameters()]
        assert critic.isdisjoint(weight.data_ptr() for weight in others)


@pytest.mark.parametrize("separate", [True, False])
def test_the_value_loss_reaches_the_policy_on_a_shared_trunk_only(separate):
    actor = value_actor(separate=separate)
    actor(*padded()).values.sum().backward()
    reached = any(weight.grad is not None for weight in actor.lm.parameters())
    assert reached is not separate


@torch.no_grad()
@pytest.mark.parametrize("separate", [True, False])
def test_s49_the_value_function_comes_back_from_disk(tmp_path, separate):
    """Peer defect 5: the critic is lost when training ends."""
    actor = value_actor(separate=separate)
    if separate:
        actor.value_trunk.layers[0].mlp.up_proj.weight.mul_(3)
    save_value_function(actor, tmp_path)
    fresh = build_actor_critic(tiny.llama(), reward_model=None, separate=separate)
    load_value_function(fresh, tmp_path)
    assert torch.equal(fresh(*padded()).values, actor(*padded()).values)


@pytest.mark.parametrize("separate", [True, False])
def test_the_safetensors_in_a_policys_folder_are_its_weights_alone(tmp_path, separate):
    """Whoever takes all of them for the model's weights, as vLLM does, reads no value function."""
    lm = tiny.llama()
    save_model(lm, tmp_path)
    save_value_function(build_actor_critic(lm, reward_model=None, separate=separate), tmp_path)
    read = {
        name: value
        for path in tmp_path.glob("*.safetensors")
        for name, value in load_file(path).items()
    }
    parameters = dict(lm.named_parameters())
    assert read.keys() == parameters.keys()
    assert all(torch.equal(read[name], weight) for name, weight in parameters.items())
    assert (tmp_path / VALUE_FUNCTION).is_file()


@pytest.mark.parametrize("separate", [True, False])
def test_a_shared_value_function_is_not_taken_for_a_separate_one(tmp_path, separate):
    save_value_function(value_actor(separate=separate), tmp_path)
    with pytest.raises(
        ModelFolderError, match=f"{VALUE_FUNCTION}: expected a s.* value model, found"
    ):
        load_value_function(value_actor(separate=not separate), tmp_path)


def test_a_reward_model_of_another_width_is_refused_in_one_line():
    config = tiny.reward_model().classifier.config
    wider = type(config)(**config.to_dict() | {"hidden_size": 64})
    scorer = RewardModel(LlamaForSequenceClassification(wider))
    with pytest.raises(ModelFolderError, match="the reward model is 64 wide and the policy 32"):
        build_actor_critic(tiny.llama(), reward_model=scorer, separate=True)
