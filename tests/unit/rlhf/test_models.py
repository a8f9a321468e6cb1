"""The models: padding, positions, dropout, and the way to disk and back."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, LlamaForSequenceClassification, Qwen2Config

from rlhf.actor_critic import build_actor_critic
from rlhf.chat import TokenizerError
from rlhf.classifiers import load_text_encoder
from rlhf.logits import response_logits
from rlhf.model_folders import ModelFolderError, save_model
from rlhf.models import load_policy, load_tokenizer
from rlhf.padding import pad_right
from rlhf.reward_models import load_reward_model
from tests import tiny
from tests.tiny import EOS, PAD, PROMPTS
from tests.unit.rlhf.model_world import ANSWERS, BOTH, CPU, padded, saved, widened

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


@pytest.mark.parametrize("read", [load_tokenizer, load_text_encoder])
@pytest.mark.parametrize("config", [BertConfig, Qwen2Config])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, config, read):
    """transformers makes one up that knows no word: to it all responses are the same."""
    config().save_pretrained(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")

    with pytest.raises(ModelFolderError, match="holds no tokenizer"):
        read(tmp_path)


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
