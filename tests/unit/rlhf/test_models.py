"""The models: padding, positions, scores, value functions, and the way to disk and back."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForSequenceClassification

from rlhf.actor_critic import (
    VALUE_FUNCTION,
    build_actor_critic,
    load_value_function,
    save_value_function,
)
from rlhf.chat import TokenizerError
from rlhf.logits import response_logits, sequence_hidden
from rlhf.model_folders import ModelFolderError, is_reward_model, save_model
from rlhf.models import load_policy, load_tokenizer
from rlhf.padding import pad_left, pad_right
from rlhf.reward_models import RewardModel, load_reward_model
from tests import tiny
from tests.tiny import EOS, PAD, PROMPTS

CPU = torch.device("cpu")
ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
"""The third one was cut at the length limit."""
BOTH = pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])
BOTH_REWARDS = pytest.mark.parametrize("build", [tiny.reward_model, tiny.gpt2_reward_model])


def padded(prompts=PROMPTS, answers=ANSWERS):
    return (*pad_left(prompts, PAD), *pad_right(answers, PAD))


def widened(ids, mask, *, left=0, right=0, junk=PAD):
    """The same rows with more padding."""
    pads = (left, right)
    wide_ids = torch.nn.functional.pad(ids, pads, value=junk)
    return wide_ids, torch.nn.functional.pad(mask, pads, value=False)


def saved(model, folder):
    model.save_pretrained(folder)
    return folder


# --- padding and positions ---------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("pads", [1, 9])
@torch.no_grad()
def test_s02_left_padding_changes_no_logit(assert_close, build, pads):
    lm, (prompt, mask, answer, answer_mask) = build(), padded()
    narrow = response_logits(lm, prompt, mask, answer, answer_mask)
    wide = response_logits(lm, *widened(prompt, mask, left=pads), answer, answer_mask)
    assert_close(wide[answer_mask], narrow[answer_mask], rtol=0, atol=1e-5)


@BOTH
@torch.no_grad()
def test_s03_right_padding_changes_no_logit(assert_close, build):
    lm, (prompt, mask, answer, answer_mask) = build(), padded()
    narrow = response_logits(lm, prompt, mask, answer, answer_mask)
    wide = response_logits(lm, prompt, mask, *widened(answer, answer_mask, right=5))[:, :4]
    assert_close(wide[answer_mask], narrow[answer_mask], rtol=0, atol=1e-5)


@BOTH
@pytest.mark.parametrize("junk", [EOS, 11, -100, 10**6])
@torch.no_grad()
def test_s03_the_pad_id_itself_is_never_read_even_where_it_is_no_legal_id(build, junk):
    lm, (prompt, mask, answer, answer_mask) = build(), padded()
    expected = response_logits(lm, prompt, mask, answer, answer_mask)
    prompt, answer = prompt.masked_fill(~mask, junk), answer.masked_fill(~answer_mask, junk)
    assert torch.equal(response_logits(lm, prompt, mask, answer, answer_mask), expected)


@BOTH
@torch.no_grad()
def test_s04_position_prompt_plus_t_minus_1_predicts_response_token_t(assert_close, build):
    """Against transformers' own forward pass over each sequence alone, without padding."""
    lm = build()
    found = response_logits(lm, *padded())
    for row, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        alone = lm(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        assert_close(found[row, : len(answer)], alone, rtol=0, atol=1e-5)


@BOTH
@torch.no_grad()
def test_s04_the_actor_gives_the_same_logits_as_the_policy_alone(build):
    lm = build()
    actor = build_actor_critic(lm, reward_model=None, separate=True)
    assert torch.equal(actor(*padded()).logits, response_logits(lm, *padded()))


@torch.no_grad()
def test_s03_padding_changes_no_value(assert_close):
    actor = value_actor(separate=True)
    prompt, mask, answer, answer_mask = padded()
    narrow = actor(*padded()).values
    wide = actor(*widened(prompt, mask, left=4, junk=9), *widened(answer, answer_mask, right=3))
    assert_close(wide.values[:, :4][answer_mask], narrow[answer_mask], rtol=0, atol=1e-5)


# --- dropout -----------------------------------------------------------------------------------


@torch.no_grad()
def test_s10_dropout_is_off_in_every_model_that_is_loaded(tmp_path):
    lm = tiny.gpt2(dropout=0.5)
    folder = saved(lm.train(), tmp_path)
    policy = load_policy(folder, CPU)
    scorer = load_reward_model(folder, CPU, torch.Generator())
    alone = [response_logits(policy, *padded()) for _ in range(2)]
    assert torch.equal(*alone)
    actor = build_actor_critic(policy, reward_model=scorer, separate=True)
    first, second = actor(*padded()), actor(*padded())
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.values, second.values)
    rows = pad_right(PROMPTS, PAD)
    assert torch.equal(scorer(*rows), scorer(*rows))


# --- the value function ------------------------------------------------------------------------


def value_actor(*, separate: bool, seed: int = 0):
    """An actor-critic whose value head is not zero."""
    actor = build_actor_critic(tiny.llama(seed), reward_model=None, separate=separate)
    generator = torch.Generator().manual_seed(seed + 50)
    for weight in actor.value_head.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
    return actor


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


# --- the reward model --------------------------------------------------------------------------


@BOTH_REWARDS
@torch.no_grad()
def test_s41_padding_and_the_order_of_rows_change_no_score(assert_close, build):
    scorer = build()
    rows = [[*prompt, EOS] for prompt in PROMPTS]
    alone = [scorer(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool)) for row in rows]
    expected = torch.cat(alone)
    assert expected.std() > 0.05
    assert_close(scorer(*pad_right(rows, PAD)), expected, rtol=0, atol=1e-5)
    assert_close(scorer(*pad_left(rows, PAD)), expected, rtol=0, atol=1e-5)
    both = widened(*pad_left(rows, PAD), left=2, right=6, junk=EOS)
    assert_close(scorer(*both), expected, rtol=0, atol=1e-5)
    assert_close(scorer(*pad_right(rows[::-1], PAD)).flip(0), expected, rtol=0, atol=1e-5)


@BOTH_REWARDS
@torch.no_grad()
def test_s41_the_score_is_read_at_the_end_token(assert_close, build):
    """Peer defect 1: reading one token before the end, or one behind it."""
    scorer = build()
    ids, mask = pad_right([[5, 6, EOS], [5, 6, 7, 8, EOS]], PAD)
    hidden = sequence_hidden(scorer.classifier.base_model, ids, mask)
    expected = torch.stack([scorer.head(hidden[0, 2]), scorer.head(hidden[1, 4])]).squeeze(1)
    assert_close(scorer(ids, mask), expected, rtol=0, atol=1e-6)
    one_early = scorer(ids[:1, :2], mask[:1, :2])
    assert (one_early - expected[:1]).abs() > 1e-3


@BOTH_REWARDS
@torch.no_grad()
def test_s41_it_scores_as_the_library_that_wrote_the_format(assert_close, build):
    """transformers' own classifier, one sequence at a time."""
    scorer = build()
    for row in PROMPTS:
        ids = torch.tensor([row])
        expected = scorer.classifier(ids).logits[0]
        assert_close(scorer(ids, torch.ones_like(ids).bool()), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s39_a_row_without_a_real_token_is_refused():
    with pytest.raises(ValueError, match="row"):
        tiny.reward_model()(*pad_right([[5, 6], []], PAD))


@torch.no_grad()
def test_s15_the_normaliser_is_applied_once(assert_close):
    scorer, rows = tiny.reward_model(), pad_right(PROMPTS, PAD)
    raw = scorer.raw_scores(*rows)
    assert_close(scorer(*rows), raw, rtol=0, atol=0)
    scorer.set_normaliser(2.0, 0.5)
    assert_close(scorer(*rows), raw * 2 - 4, rtol=0, atol=1e-5)
    assert_close(scorer.raw_scores(*rows), raw, rtol=0, atol=0)


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan")])
def test_s15_a_spread_that_is_not_positive_is_refused(std):
    with pytest.raises(ValueError, match="gives every reference response one score"):
        tiny.reward_model().set_normaliser(0.0, std)


@BOTH_REWARDS
@torch.no_grad()
def test_s49_a_saved_reward_model_gives_the_same_scores(tmp_path, build):
    scorer, rows = build(), pad_right(PROMPTS, PAD)
    scorer.set_normaliser(-0.3, 1.7)
    scorer.classifier.save_pretrained(tmp_path)
    loaded = load_reward_model(tmp_path, CPU, torch.Generator().manual_seed(99))
    assert (loaded.mean, loaded.std) == (-0.3, 1.7)
    assert torch.equal(loaded(*rows), scorer(*rows))


@torch.no_grad()
def test_s49_a_reward_model_that_was_never_normalised_keeps_its_head(tmp_path):
    scorer, rows = tiny.reward_model(), pad_right(PROMPTS, PAD)
    scorer.classifier.save_pretrained(tmp_path)
    loaded = load_reward_model(tmp_path, CPU, torch.Generator().manual_seed(99))
    assert torch.equal(loaded(*rows), scorer(*rows))


@torch.no_grad()
def test_s49_a_reward_model_from_elsewhere_keeps_its_head(tmp_path):
    classifier = tiny.gpt2_reward_model().classifier
    folder = saved(classifier, tmp_path)
    loaded = load_reward_model(folder, CPU, torch.Generator().manual_seed(99))
    ids = torch.tensor([PROMPTS[0]])
    assert torch.equal(loaded(ids, torch.ones_like(ids).bool()), classifier(ids).logits[0])


@BOTH
def test_s42_a_fresh_head_is_drawn_from_the_seed_with_deviation_1_over_root_d_plus_1(
    assert_close, tmp_path, build
):
    folder = saved(build(), tmp_path)
    heads = [
        load_reward_model(folder, CPU, torch.Generator().manual_seed(seed)).head
        for seed in (4, 4, 5)
    ]
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    assert heads[0].bias is None
    expected = torch.randn(1, 32, generator=torch.Generator().manual_seed(4)) / 33**0.5
    assert_close(heads[0].weight, expected, rtol=0, atol=1e-7)


@torch.no_grad()
def test_s42_a_fresh_reward_model_has_the_policys_trunk_and_no_normaliser(tmp_path):
    lm = tiny.llama()
    scorer = load_reward_model(saved(lm, tmp_path), CPU, torch.Generator())
    for name, weight in lm.base_model.state_dict().items():
        assert torch.equal(scorer.classifier.base_model.state_dict()[name], weight)
    assert (scorer.mean, scorer.std) == (0.0, 1.0)
    assert not is_reward_model(tmp_path)
    assert isinstance(scorer, RewardModel)


@torch.no_grad()
@pytest.mark.parametrize("token", [5, 9])
def test_the_reward_model_made_by_hand_scores_the_share_of_its_token(assert_close, token):
    """The tests of learning rely on it."""
    scorer = tiny.share_of_token_reward_model(token, gain=0.1)
    rows = [[token, 2, 3, 4], [token, token, 3, EOS], [2, 3, 4], [token] * 5]
    assert_close(scorer(*pad_right(rows, PAD)), [0.025, 0.05, 0.0, 0.1], rtol=0, atol=2e-4)


# --- folders -----------------------------------------------------------------------------------


def load_fresh_reward_model(folder, device):
    return load_reward_model(folder, device, torch.Generator())


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ModelFolderError, match="nowhere: no such model folder"):
        load_policy(tmp_path / "nowhere", CPU)


@pytest.mark.parametrize("load", [load_policy, load_fresh_reward_model])
def test_a_folder_without_a_model_is_refused(tmp_path, load):
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        load(tmp_path, CPU)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelFolderError, match="no weights in safetensors format"):
        load(tmp_path, CPU)


def test_weights_that_could_run_code_when_loaded_are_refused(tmp_path):
    saved(tiny.llama(), tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelFolderError, match="safetensors"):
        load_policy(tmp_path, CPU)


def test_a_folder_whose_tokenizer_has_no_end_token_is_refused(tmp_path):
    saved(tiny.llama(), tmp_path)
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.eos_token = tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(TokenizerError, match="has no end-of-sequence token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("pad", [EOS, PAD, None])
def test_s01_the_embedding_of_a_pad_token_learns_like_any_other(tmp_path, pad):
    """Torch leaves the row of `config.pad_token_id` out of gradients, and it is often the end's."""
    classifier = tiny.reward_model().classifier
    classifier.config.pad_token_id = pad
    saved(classifier, tmp_path)
    model = load_reward_model(tmp_path, CPU, torch.Generator())
    model.raw_scores(*pad_right([[5, 6, EOS], [7, EOS]], PAD)).sum().backward()
    gradient = model.classifier.get_input_embeddings().weight.grad
    moved = gradient.abs().sum(dim=1).nonzero().squeeze(1)
    assert moved.tolist() == [EOS, 5, 6, 7]


def test_a_reward_model_is_not_taken_for_a_policy(tmp_path):
    classifier = tiny.reward_model().classifier
    classifier.config.tie_word_embeddings = False
    saved(classifier, tmp_path)
    with pytest.raises(ModelFolderError, match=r"weights are missing: lm_head\.weight"):
        load_policy(tmp_path, CPU)


def test_a_reward_model_of_ours_is_not_taken_for_a_policy_either(tmp_path):
    """Its embeddings are tied, so no weight is missing."""
    scorer = tiny.reward_model()
    scorer.set_normaliser(0.0, 1.0)
    scorer.classifier.save_pretrained(tmp_path)
    with pytest.raises(ModelFolderError, match="expected a policy, found a reward model"):
        load_policy(tmp_path, CPU)


@pytest.mark.parametrize("load", [load_policy, load_fresh_reward_model])
def test_weights_that_are_missing_are_named(tmp_path, load):
    saved(tiny.llama(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFolderError, match=f"weights are missing: {name}"):
        load(tmp_path, CPU)


def test_a_classifier_with_two_labels_is_no_reward_model(tmp_path):
    config = tiny.llama().config
    config.num_labels = 2
    saved(LlamaForSequenceClassification(config), tmp_path)
    with pytest.raises(ModelFolderError, match=r"score\.weight has shape \(2, 32\), expected \(1"):
        load_fresh_reward_model(tmp_path, CPU)


@torch.no_grad()
@BOTH
def test_s49_a_saved_policy_gives_the_same_logits_in_float32(tmp_path, build):
    lm = build()
    loaded = load_policy(saved(lm, tmp_path), CPU)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    assert torch.equal(response_logits(loaded, *padded()), response_logits(lm, *padded()))


@BOTH
def test_a_saved_model_is_the_hubs_but_for_the_version_of_the_library(tmp_path, build):
    build().save_pretrained(tmp_path / "hub")
    save_model(build(), tmp_path / "ours")

    names = {path.name for path in (tmp_path / "hub").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in (tmp_path / "ours").iterdir()} == names
    for name in names:
        lines = (tmp_path / "hub" / name).read_bytes().splitlines()
        kept = [line.rstrip(b",") for line in lines if b"transformers_version" not in line]
        ours = (tmp_path / "ours" / name).read_bytes().splitlines()
        assert [line.rstrip(b",") for line in ours] == kept
    assert type(load_policy(tmp_path / "ours", CPU)) is type(build())
