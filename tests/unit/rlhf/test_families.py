"""Every family of decoders: each result is the family's own model's, run on one sequence alone."""

import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from rlhf import pass_sizes
from rlhf.actor_critic import build_actor_critic, load_value_function, save_value_function
from rlhf.draws import draw_table
from rlhf.generation import sample_responses
from rlhf.logits import OUTPUT_LAYER_ALONE, language_model_head, response_logits, sequence_hidden
from rlhf.lora import adapter_weights, add_adapter, take_adapter
from rlhf.model_folders import is_reward_model, save_model
from rlhf.models import load_policy
from rlhf.optimisers import Optimiser, Training
from rlhf.padding import pad_left, pad_right
from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.reward import RewardParams
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams
from rlhf.ppo_update import PPOTraining
from rlhf.reward import EncodedPair
from rlhf.reward import train as train_reward
from rlhf.reward_models import RewardModel, load_reward_model
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from rlhf.self_checks import check_models, fingerprint
from rlhf.sft import Example, response_loss
from rlhf.sft import train as train_sft
from rlhf.token_draws import draw_index
from tests.families import EVERY, policy
from tests.ppo_world import ONE_STEP, run
from tests.ppo_world import params as ppo_params
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS, TOKENS

CPU = torch.device("cpu")
ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
DERIVED = {"cohere2", "gemma", "gemma3_text", "mistral", "phi3", "smollm3"}
"""Families each of whose peculiarities another one has."""
EACH = pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=pytest.mark.long if family in DERIVED else []) for family in EVERY],
)


def padded(prompts=PROMPTS, answers=ANSWERS):
    """Prompts padded left, and answers padded right."""
    return (*pad_left(prompts, PAD), *pad_right(answers, PAD))


def alone(lm: PreTrainedModel, row: list[int]) -> torch.Tensor:
    """The family's own logits (sequence, vocab)."""
    return lm(torch.tensor([row])).logits[0]


@EACH
@torch.no_grad()
def test_logits_of_a_padded_batch_are_the_models_own(assert_close, family):
    lm = policy(family)
    found = response_logits(lm, *padded())
    for row, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        expected = alone(lm, [*prompt, *answer])[len(prompt) - 1 : -1]
        assert_close(found[row, : len(answer)], expected, rtol=0, atol=2e-5)


@torch.no_grad()
def test_some_families_do_more_to_their_logits_than_an_output_layer():
    """Without it the tests above and below could not fail."""
    ids, mask = pad_right(PROMPTS, PAD)
    more = set()
    for family in EVERY:
        lm = policy(family)
        hidden = sequence_hidden(lm.base_model, ids, mask)
        plain, own = lm.get_output_embeddings()(hidden), language_model_head(lm, hidden)
        if (plain - own).abs().max() > 1:
            more.add(family)
    assert more == {"cohere", "cohere2", "gemma2", "gemma3_text", "granite"}
    assert not more & OUTPUT_LAYER_ALONE
    assert set(EVERY) >= OUTPUT_LAYER_ALONE


@EACH
@torch.no_grad()
def test_decoding_with_a_cache_draws_what_the_whole_sequence_says(family):
    """Rows of all lengths, of which some end, and so leave the batch, before others."""
    lm, prompts = policy(family), [[token, *row] for token in (2, 9) for row in PROMPTS]
    settings = SamplingParams(temperature=1.0, max_new_tokens=9)
    draws = draw_table(3, prompts, settings.max_new_tokens)

    def sampled(end: int):
        ids, mask = pad_left(prompts, PAD)
        return sample_responses(lm, ids, mask, settings, stop_ids=[end], pad_id=PAD, draws=draws)

    end = int(sampled(-1).response_ids.flatten().bincount().argmax())
    found = sampled(end).rows()
    assert len({len(row) for row in found}) > 2
    for prompt, row, numbers in zip(prompts, found, draws, strict=True):
        own = alone(lm, [*prompt, *row])[len(prompt) - 1 : -1].softmax(dim=-1)
        assert draw_index(own, numbers[: len(row)]).tolist() == row
        assert row.index(end) == len(row) - 1 if end in row else len(row) == len(numbers)


@EACH
@torch.no_grad()
def test_prompts_read_in_parts_are_answered_as_those_read_at_once(monkeypatch, family):
    """Prompts longer than a window of attention, some with parts of padding alone."""
    lm, plain = policy(family), policy(family)
    prompts = [list(range(2, 2 + length)) for length in (12, 1, 7, 12)]
    settings = SamplingParams(temperature=1.0, max_new_tokens=6)
    draws = draw_table(4, prompts, settings.max_new_tokens)
    ids, mask = pad_left(prompts, PAD)
    read: list[int] = []
    lm.base_model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    # An MLP of 48 numbers a position, or four times 32 where a family does not say.
    whole, some, each = [[12]], [[6, 6], [4, 4, 4]], [[1] * 12]
    for most, expected in ((2**27, whole), (4 * 12 * 48 - 1, some), (1, each)):
        monkeypatch.setattr(pass_sizes, "MOST_READ", most)
        read.clear()
        found = sample_responses(lm, ids, mask, settings, stop_ids=[-1], pad_id=PAD, draws=draws)
        assert read[:-5] in expected
        assert read[-5:] == [1] * 5
        for prompt, row, numbers in zip(prompts, found.rows(), draws, strict=True):
            own = alone(plain, [*prompt, *row])[len(prompt) - 1 : -1].softmax(dim=-1)
            assert draw_index(own, numbers[: len(row)]).tolist() == row


@EACH
def test_the_loss_of_sft_is_the_cross_entropy_of_the_models_own_logits(assert_close, family):
    lm = policy(family)
    examples = [Example(*pair) for pair in zip(PROMPTS, ANSWERS, strict=True)]
    tokens = sum(map(len, ANSWERS))
    expected = torch.zeros(())
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        logprobs = alone(lm, [*prompt, *answer])[len(prompt) - 1 : -1].log_softmax(dim=-1)
        expected = expected - logprobs[range(len(answer)), answer].sum() / tokens
    found = response_loss(lm, examples, tokens=tokens, pad_id=PAD)
    assert_close(found, expected, rtol=0, atol=1e-5)
    weights = [*lm.parameters()]
    mine, theirs = (torch.autograd.grad(loss, weights) for loss in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other, rtol=0, atol=1e-5)


# --- reward models and value functions -----------------------------------------------------------


def scorer_of(family: str, folder: Path) -> RewardModel:
    """A fresh head on the family's trunk, as the first round puts it there."""
    policy(family).save_pretrained(folder)
    return load_reward_model(folder, CPU, torch.Generator().manual_seed(5))


@EACH
@torch.no_grad()
def test_a_reward_head_reads_the_policys_last_hidden_state_and_comes_back_from_disk(
    assert_close, tmp_path, family
):
    scorer = scorer_of(family, tmp_path / "policy")
    head = torch.randn(1, scorer.head.in_features, generator=torch.Generator().manual_seed(5))
    head /= (scorer.head.in_features + 1) ** 0.5
    trunk = policy(family).base_model
    expected = [
        trunk(input_ids=torch.tensor([row])).last_hidden_state[0, -1] @ head[0] for row in PROMPTS
    ]
    assert_close(scorer(*pad_right(PROMPTS, PAD)), expected, rtol=0, atol=2e-5)
    assert_close(scorer(*pad_left(PROMPTS, PAD)), expected, rtol=0, atol=2e-5)
    library = scorer.classifier(torch.tensor([PROMPTS[0]])).logits[0, 0]
    assert_close(library, expected[0], rtol=0, atol=2e-5)

    scorer.set_normaliser(0.25, 2.0)
    save_model(scorer.classifier, tmp_path / "reward")
    assert is_reward_model(tmp_path / "reward")
    again = load_reward_model(tmp_path / "reward", CPU, torch.Generator())
    assert torch.equal(again(*pad_right(PROMPTS, PAD)), scorer(*pad_right(PROMPTS, PAD)))
    names = json.loads((tmp_path / "reward/config.json").read_text())["architectures"]
    assert names == [type(policy(family).base_model).__name__[:-5] + "ForSequenceClassification"]


@EACH
@torch.no_grad()
def test_a_value_function_from_the_reward_model_starts_at_its_score(assert_close, tmp_path, family):
    scorer, lm = scorer_of(family, tmp_path), policy(family, seed=1)
    scorer.set_normaliser(0.25, 2.0)
    actor = build_actor_critic(lm, reward_model=scorer, separate=True)
    longer = [[*answer, 6] for answer in ANSWERS]
    output = actor(*padded(answers=longer))
    whole = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    found = [output.values[row, len(answer)] for row, answer in enumerate(ANSWERS)]
    assert_close(found, scorer(*pad_right(whole, PAD)), rtol=0, atol=2e-5)
    assert_close(output.logits, response_logits(lm, *padded(answers=longer)), rtol=0, atol=0)
    save_value_function(actor, tmp_path)
    fresh = build_actor_critic(lm, reward_model=None, separate=True)
    load_value_function(fresh, tmp_path)
    assert torch.equal(fresh(*padded()).values, actor(*padded()).values)


# --- training, adapters, disk ---------------------------------------------------------------------

FAST = {"gemma2", "gpt2", "granite", "opt"}
"""The families whose trainings run with every test; the others take half a minute."""
RATE = OptimiserParams(lr=1e-3, warmup_steps=0, schedule="constant")


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[] if family in FAST else pytest.mark.long) for family in EVERY],
)
def test_each_training_takes_a_step_that_lowers_its_loss(tmp_path, family):
    lm = policy(family)
    examples = [Example(*pair) for pair in zip(PROMPTS, ANSWERS, strict=True)]
    settings = SFTParams(epochs=6, batch_size=4, optimiser=RATE)
    training = Training(lm, Optimiser(RATE, lm.named_parameters()))
    losses = [
        step.loss
        for step in train_sft(
            training, examples, settings, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)
        )
    ]
    assert losses[-1] < losses[0]

    scorer = scorer_of(family, tmp_path)
    pairs = [EncodedPair([*p, 5, EOS], [*p, 9, 3, EOS], margin=0.0, weight=1.0) for p in PROMPTS]
    learning = Training(scorer, Optimiser(RATE, scorer.named_parameters()))
    rewards = RewardParams(epochs=6, batch_size=4, optimiser=RATE)
    losses = [
        step.loss
        for step in train_reward(
            learning, pairs, rewards, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)
        )
    ]
    assert losses[-1] < losses[0]

    scorer.set_normaliser(0.0, 1.0)
    actor = build_actor_critic(policy(family), reward_model=None, separate=False)
    models = PPOModels(actor, policy(family), scorer)
    check_models(models, PROMPTS, TOKENS, starts_at_reference=True)
    before = fingerprint(actor.lm)
    shared = ppo_params(**ONE_STEP, value_model="shared", value_init="zero")
    (iteration,) = run(PPOTraining(models, shared), shared)
    assert abs(iteration.metrics.kl) < 1e-4
    assert fingerprint(actor.lm) != before


@EACH
@torch.no_grad()
def test_an_adapter_is_found_a_place_and_merged_without_a_change(assert_close, family):
    lm = policy(family)
    plain = response_logits(lm, *padded())
    add_adapter(lm, LoraParams(rank=2, alpha=4), torch.Generator().manual_seed(1))
    assert torch.equal(response_logits(lm, *padded()), plain)
    weights = adapter_weights(lm)
    assert {name.split(".lora_")[0] for name in weights if "lm_head" in name} == set()
    for name, weight in weights.items():
        if "lora_B" in name:
            weight.fill_(0.1)
    adapted = response_logits(lm, *padded())
    assert (adapted - plain).abs().max() > 1e-3
    assert len(take_adapter(lm).weights) == len(weights) > 4
    assert_close(response_logits(lm, *padded()), adapted, rtol=0, atol=1e-4)


@EACH
@torch.no_grad()
def test_a_merged_policy_comes_back_from_two_files_of_which_others_share_the_first(
    tmp_path, family
):
    first = []
    for seed in (1, 2):
        lm = policy(family)
        add_adapter(lm, LoraParams(rank=2, alpha=4), torch.Generator().manual_seed(seed))
        for name, weight in adapter_weights(lm).items():
            if "lora_B" in name:
                weight.fill_(0.1)
        folder = tmp_path / f"{seed}"
        save_model(lm, folder, changed=take_adapter(lm).changed)
        loaded = load_policy(folder, CPU)
        assert torch.equal(response_logits(loaded, *padded()), response_logits(lm, *padded()))
        first.append((folder / "model-00001-of-00002.safetensors").read_bytes())
    assert first[0] == first[1]


@EACH
@torch.no_grad()
def test_a_policy_comes_back_from_disk(tmp_path, family):
    lm = policy(family)
    save_model(lm, tmp_path)
    assert torch.equal(
        response_logits(load_policy(tmp_path, CPU), *padded()), response_logits(lm, *padded())
    )


@torch.no_grad()
@pytest.mark.parametrize("family", ["gemma2", "qwen2"])
def test_a_bfloat16_checkpoint_in_several_files_is_read_in_float32(tmp_path, family):
    lm = policy(family)
    copy.deepcopy(lm).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    loaded = load_policy(tmp_path, CPU)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    for name, weight in lm.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16().float())
