"""Each training loop with a low-rank adapter: what it trains, leaves alone and saves."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from rlhf.actor_critic import build_actor_critic, load_value_function, save_value_function
from rlhf.lora import ADAPTER, adapter_weights, add_adapter, load_adapter, take_adapter
from rlhf.models import load_policy
from rlhf.optimisers import Optimiser, Training
from rlhf.padding import pad_right
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.reward import RewardParams
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams
from rlhf.ppo import train as train_ppo
from rlhf.ppo_update import PPOTraining
from rlhf.reward import EncodedPair
from rlhf.reward import train as train_reward
from rlhf.reward_models import RewardModel, load_reward_model
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from rlhf.self_checks import check_models, fingerprint
from rlhf.sft import Example
from rlhf.sft import train as train_sft
from tests import tiny
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS, TOKENS
from tests.unit.rlhf.adapted_models import CPU, IDS, LORA, adapted, generator

FAST = OptimiserParams(lr=2e-2, warmup_steps=0, schedule="constant")


def changed_weights(before, after) -> set[str]:
    """Names under which two models differ, adapters aside; `base_layer` is peft's."""
    plain = {name.replace(".base_layer", ""): w for name, w in after.state_dict().items()}
    return {name for name, w in before.state_dict().items() if not torch.equal(plain[name], w)}


def test_s38_sft_trains_the_adapter_and_no_weight_of_the_model():
    model = tiny.llama()
    add_adapter(model, LORA, generator())
    params = SFTParams(epochs=12, batch_size=2, optimiser=FAST)
    examples = [Example([5, 6, 7], [8, 9, EOS]), Example([4], [10, 11, EOS])]
    training = Training(model, Optimiser(FAST, model.named_parameters()))
    steps = list(train_sft(training, examples, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)))
    assert steps[-1].loss < steps[0].loss / 3
    assert changed_weights(tiny.llama(), model) == set()


def scorer_after_training() -> tuple[RewardModel, list[float]]:
    scorer = tiny.reward_model()
    add_adapter(scorer.classifier, LORA, generator(), head=scorer.head)
    pairs = [EncodedPair([5, n, EOS], [6, n, EOS], 0.0, 1.0) for n in range(2, 14)]
    params = RewardParams(epochs=4, batch_size=4, optimiser=FAST)
    training = Training(scorer, Optimiser(FAST, scorer.named_parameters()))
    steps = train_reward(training, pairs, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0))
    return scorer, [step.loss for step in steps]


@torch.no_grad()
def test_s49_a_reward_model_trains_adapter_and_head_and_both_survive(assert_close, tmp_path):
    with torch.enable_grad():
        scorer, losses = scorer_after_training()
    assert losses[-1] < losses[0] / 3
    before = tiny.reward_model()
    assert changed_weights(before.classifier, scorer.classifier) == {"score.weight"}
    scorer.set_normaliser(0.3, 2.0)
    rows = pad_right([[5, 6, EOS], [7, EOS]], PAD)
    expected = scorer(*rows)
    adapter = take_adapter(scorer.classifier)
    scorer.classifier.save_pretrained(tmp_path)
    adapter.save(tmp_path / ADAPTER)
    found = load_reward_model(tmp_path, CPU, torch.Generator())
    assert_close(found(*rows), expected, rtol=1e-4, atol=1e-4)
    # peft puts the same together from the untrained model and the adapter folder, head included.
    by_peft = PeftModel.from_pretrained(before.classifier, tmp_path / ADAPTER)
    raw = by_peft(IDS[:1], attention_mask=torch.ones_like(IDS[:1])).logits[0, 0]
    mine = found.raw_scores(IDS[:1], torch.ones_like(IDS[:1]).bool())[0]
    assert_close(raw, mine, rtol=1e-4, atol=1e-4)
    assert "base_model.model.score.weight" in load_file(
        tmp_path / ADAPTER / "adapter_model.safetensors"
    )


def ppo(value_model: str):
    """A round of three iterations in which the policy is its own reference."""
    settings = PPOParams(
        iterations=3, rollout_size=16, minibatches=2, micro_batch_size=8, kl_coef=0.01,
        sampling=SamplingParams(max_new_tokens=6), optimiser=FAST, value_optimiser=FAST,
        value_model=value_model, lora=LORA,
    )  # fmt: skip
    lm = tiny.llama()
    actor = build_actor_critic(lm, reward_model=None, separate=value_model == "separate")
    add_adapter(lm, LORA, generator())
    models = PPOModels(actor, lm, tiny.share_of_token_reward_model(5))
    check_models(models, PROMPTS, TOKENS, starts_at_reference=True)
    training = PPOTraining(models, settings)
    frozen = fingerprint(lm)
    steps = train_ppo(training, PROMPTS, settings, TOKENS, compute=COMPUTE, seeds=Seeds(0))
    metrics = [step.metrics for step in steps]
    assert fingerprint(lm) == frozen
    return actor, metrics


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_s38_ppo_needs_no_second_model_for_its_reference(value_model):
    """KL is 0 in the first rollout and grows; the weights under the adapter stay to the bit."""
    actor, metrics = ppo(value_model)
    assert metrics[0].kl == 0.0
    assert metrics[1].kl != 0.0
    assert abs(metrics[-1].kl) > 0.01
    assert changed_weights(tiny.llama(), actor.lm) == set()
    assert actor.value_head.weight.any()


def test_s38_a_reference_that_keeps_its_adapter_on_is_noticed():
    """Were the adapter not switched off, policy and reference would never differ."""
    lm = adapted()
    models = PPOModels(
        build_actor_critic(lm, reward_model=None, separate=False), lm, tiny.reward_model()
    )
    with pytest.raises(RuntimeError, match="the policy equals the reference at step 0"):
        check_models(models, PROMPTS, TOKENS, starts_at_reference=True)


@pytest.mark.parametrize("value_model", ["shared", "separate"])
@torch.no_grad()
def test_s38_the_value_function_survives_saving(assert_close, value_model, tmp_path):
    with torch.enable_grad():
        actor, _ = ppo(value_model)
    batch = (IDS[:, :2], torch.ones(2, 2).bool(), IDS[:, 2:], torch.ones(2, 3).bool())
    expected = actor(*batch)
    assert expected.values.abs().max() > 1e-3
    take_adapter(actor.lm).save(tmp_path / ADAPTER)
    actor.lm.save_pretrained(tmp_path)
    save_value_function(actor, tmp_path)
    separate = value_model == "separate"
    merged = build_actor_critic(load_policy(tmp_path, CPU), reward_model=None, separate=separate)
    later = build_actor_critic(tiny.llama(), reward_model=None, separate=separate)
    load_adapter(later.lm, tmp_path / ADAPTER, LORA)
    for found in (merged, later):
        load_value_function(found, tmp_path)
        assert_close(found(*batch).values, expected.values, rtol=1e-4, atol=1e-4)
        assert_close(found(*batch).logits, expected.logits, rtol=1e-4, atol=1e-4)


def sft(seed: int) -> tuple[Training, Callable[[Training], Iterator[object]]]:
    """A training of an adapter that is drawn from `seed`, and its loop of four steps."""
    model = tiny.llama()
    add_adapter(model, LORA, torch.Generator().manual_seed(seed))
    params = SFTParams(epochs=4, batch_size=2, optimiser=FAST)
    examples = [Example([5, 6, 7], [8, 9, EOS]), Example([4], [10, 11, EOS])]

    def loop(training: Training) -> Iterator[object]:
        return train_sft(training, examples, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0))

    return Training(model, Optimiser(FAST, model.named_parameters())), loop


def test_s55_a_checkpoint_holds_the_adapter_alone_and_a_training_resumes_from_it_to_the_bit():
    whole, loop = sft(seed=1)
    steps = loop(whole)
    next(steps), next(steps)
    state = copy.deepcopy(whole.state_dict())
    list(steps)
    assert state["model"].keys() == adapter_weights(whole.model).keys()

    resumed, loop = sft(seed=2)
    resumed.load_state_dict(state)
    assert len(list(loop(resumed))) == 2
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


def test_s55_a_checkpoint_without_a_trained_weight_is_refused():
    training, _ = sft(seed=1)
    state = copy.deepcopy(training.state_dict())
    state["model"].popitem()
    with pytest.raises(RuntimeError, match="Missing key"):
        training.load_state_dict(state)


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_s55_a_checkpoint_of_ppo_holds_what_is_trained_beside_the_adapter(value_model):
    settings = PPOParams(value_model=value_model, value_init="zero", lora=LORA)
    lm = tiny.llama()
    actor = build_actor_critic(lm, reward_model=None, separate=value_model == "separate")
    add_adapter(lm, LORA, generator())
    held = PPOTraining(PPOModels(actor, lm, None), settings).state_dict()["actor"]
    values = {name for name in actor.state_dict() if name.startswith("value_")}
    assert held.keys() == values | {f"lm.{name}" for name in adapter_weights(lm)}
    assert ("value_trunk.embed_tokens.weight" in held) == (value_model == "separate")


def test_s55_the_state_of_a_training_with_an_adapter_is_restored_to_the_bit():
    model = adapted()
    state = copy.deepcopy(model.state_dict())
    other = adapted(seed=9)
    other.load_state_dict(state)
    assert torch.equal(other(IDS).logits, model(IDS).logits)
