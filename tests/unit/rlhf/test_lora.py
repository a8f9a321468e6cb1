"""Low-rank adapters: what they leave alone, what they train, the way to disk, each loop with one.

`peft` itself, which reads the folders that are written here, is the independent witness.
"""

import copy
import json

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file

from rlhf.actor_critic import build_actor_critic, load_value_function, save_value_function
from rlhf.lora import (
    ADAPTER,
    adapter_off,
    adapter_weights,
    add_adapter,
    has_adapter,
    load_adapter,
    merged,
    take_adapter,
)
from rlhf.model_folders import ModelFolderError
from rlhf.models import load_policy
from rlhf.optimisers import Optimiser, Training
from rlhf.padding import pad_right
from rlhf.params.lora import LoraParams
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

CPU = torch.device("cpu")
LORA = LoraParams(rank=4, alpha=8)
BOTH = pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])
FAST = OptimiserParams(lr=2e-2, warmup_steps=0, schedule="constant")
IDS = torch.tensor([[5, 6, 7, 8, EOS], [4, 10, 11, 12, 13]])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def adapted(build=tiny.llama, seed: int = 3):
    """A model whose adapter says something: B is drawn as well."""
    model = build()
    add_adapter(model, LORA, generator(seed))
    for name, weight in adapter_weights(model).items():
        if "lora_B" in name:
            weight.data.copy_(torch.randn(weight.shape, generator=generator(seed)) / 4)
    return model


def changed_weights(before, after) -> set[str]:
    """Names under which two models differ, adapters aside; `base_layer` is peft's."""
    plain = {name.replace(".base_layer", ""): w for name, w in after.state_dict().items()}
    return {name for name, w in before.state_dict().items() if not torch.equal(plain[name], w)}


# --- what an adapter is --------------------------------------------------------------------------


@BOTH
@torch.no_grad()
def test_s38_with_the_adapter_off_the_logits_are_those_of_the_base_to_the_bit(build):
    model = adapted(build)
    expected, with_adapter = build()(IDS).logits, model(IDS).logits
    with adapter_off(model):
        assert torch.equal(model(IDS).logits, expected)
    assert torch.equal(model(IDS).logits, with_adapter)
    assert (with_adapter - expected).abs().max() > 0.1


@BOTH
@torch.no_grad()
def test_s38_a_fresh_adapter_changes_nothing(build):
    model = build()
    add_adapter(model, LORA, generator())
    assert torch.equal(model(IDS).logits, build()(IDS).logits)


@BOTH
@torch.no_grad()
def test_s38_the_adapter_adds_alpha_over_rank_times_b_a(assert_close, build):
    """The formula, put into a plain model by hand; GPT-2 keeps its matrices transposed."""
    model, plain = adapted(build), build()
    weights = adapter_weights(model)
    for name, a in weights.items():
        if "lora_A" in name:
            product = 8 / 4 * weights[name.replace("lora_A", "lora_B")] @ a
            target = plain.get_submodule(name.partition(".lora_")[0])
            target.weight += product.T if build is tiny.gpt2 else product
    assert_close(model(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-4)


def test_s57_the_same_generator_gives_the_same_adapter_whatever_the_global_one():
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(found))
        model = tiny.llama()
        add_adapter(model, LORA, generator(seed))
        found.append(torch.cat([w.flatten() for w in adapter_weights(model).values()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_s38_every_linear_layer_of_the_trunk_has_one_and_no_head_or_embedding():
    names = {name.split(".")[-4] for name in adapter_weights(adapted())}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    model = tiny.llama()
    add_adapter(model, LoraParams(rank=2, targets=["q_proj"]), generator())
    assert {name.split(".")[-4] for name in adapter_weights(model)} == {"q_proj"}
    scorer = tiny.reward_model()
    add_adapter(scorer.classifier, LORA, generator(), head=scorer.head)
    assert not [name for name in adapter_weights(scorer) if "score" in name]


def test_targets_that_the_model_does_not_have_are_refused():
    with pytest.raises(ModelFolderError, match=r"lora.targets \['nonsense'\]"):
        add_adapter(tiny.llama(), LoraParams(targets=["nonsense"]), generator())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_s38_only_the_adapter_is_in_the_optimiser(name):
    model = adapted()
    optimiser = Optimiser(OptimiserParams(name=name), model.named_parameters())
    assert {id(w) for w in optimiser.weights} == {id(w) for w in adapter_weights(model).values()}
    states = optimiser.state_dict()
    assert list(states) == ["0"], "adapters never go to Muon"


# --- merging, and the way to disk ----------------------------------------------------------------


@BOTH
@torch.no_grad()
def test_s38_merged_equals_unmerged_and_is_a_plain_model(assert_close, build):
    model = adapted(build)
    expected = model(IDS).logits
    take_adapter(model)
    assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert set(model.state_dict()) == set(build().state_dict())
    assert not has_adapter(model)
    assert all(weight.requires_grad for weight in model.parameters())


@BOTH
@torch.no_grad()
def test_s38_a_merged_copy_is_what_the_model_is_now_which_stays_in_training(assert_close, build):
    model = adapted(build)
    expected, before = model(IDS).logits, copy.deepcopy(model.state_dict())
    plain = merged(model, build(), LORA)
    assert_close(plain(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert set(plain.state_dict()) == set(build().state_dict())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert torch.equal(model(IDS).logits, expected)


@BOTH
@torch.no_grad()
def test_s49_saved_merged_the_folder_loads_like_any_model(assert_close, build, tmp_path):
    model = adapted(build)
    expected = model(IDS).logits
    adapter = take_adapter(model)
    model.save_pretrained(tmp_path)
    adapter.save(tmp_path / ADAPTER)
    assert_close(load_policy(tmp_path, CPU)(IDS).logits, expected, rtol=1e-4, atol=1e-4)


@BOTH
@torch.no_grad()
def test_s49_peft_reads_the_adapter_folder(build, tmp_path):
    model = adapted(build)
    expected = model(IDS).logits
    take_adapter(model).save(tmp_path / ADAPTER)
    assert torch.equal(PeftModel.from_pretrained(build(), tmp_path / ADAPTER)(IDS).logits, expected)


@BOTH
@torch.no_grad()
def test_s38_a_later_round_continues_with_the_adapter_and_its_reference_is_still_sft(
    build, tmp_path
):
    model = adapted(build)
    expected = model(IDS).logits
    take_adapter(model).save(tmp_path / ADAPTER)
    later = build()
    load_adapter(later, tmp_path / ADAPTER, LORA)
    assert torch.equal(later(IDS).logits, expected)
    with adapter_off(later):
        assert torch.equal(later(IDS).logits, build()(IDS).logits)
    assert all(weight.requires_grad for weight in adapter_weights(later).values())


def test_a_policy_without_adapter_and_one_of_another_shape_are_refused(tmp_path):
    with pytest.raises(ModelFolderError, match=r"expected an adapter .*, found none; with LoRA"):
        load_adapter(tiny.llama(), tmp_path, LORA)
    take_adapter(adapted()).save(tmp_path / ADAPTER)
    with pytest.raises(ModelFolderError, match="r is 4, expected 6"):
        load_adapter(tiny.llama(), tmp_path / ADAPTER, LoraParams(rank=6, alpha=8))
    with pytest.raises(ModelFolderError, match="lora_alpha is 8, expected 9"):
        load_adapter(tiny.llama(), tmp_path / ADAPTER, LoraParams(rank=4, alpha=9))
    with pytest.raises(ModelFolderError, match="adapter of another model, or with other targets"):
        load_adapter(tiny.gpt2(), tmp_path / ADAPTER, LORA)


def test_the_same_adapter_gives_the_same_bytes(tmp_path):
    """peft writes sets in an order that changes from process to process."""
    for name in ("one", "other"):
        take_adapter(adapted()).save(tmp_path / name)
    files = [(tmp_path / name / "adapter_config.json").read_text() for name in ("one", "other")]
    assert files[0] == files[1]
    targets = json.loads(files[0])["target_modules"]
    assert targets == sorted(targets)


def test_an_adapters_config_names_no_version_and_peft_reads_it(tmp_path):
    take_adapter(adapted()).save(tmp_path / "one")
    assert "peft_version" not in json.loads((tmp_path / "one/adapter_config.json").read_text())
    assert LoraConfig.from_pretrained(tmp_path / "one").r == LORA.rank


# --- the loops -----------------------------------------------------------------------------------


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


def test_s55_the_state_of_a_training_with_an_adapter_is_restored_to_the_bit():
    model = adapted()
    state = copy.deepcopy(model.state_dict())
    other = adapted(seed=9)
    other.load_state_dict(state)
    assert torch.equal(other(IDS).logits, model(IDS).logits)
