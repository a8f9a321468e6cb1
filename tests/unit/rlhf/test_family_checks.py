"""What base asks of a model: every family passes, and each way to fail is named."""

import pytest
import torch

from rlhf import family_checks, logits
from rlhf.family_checks import UnsupportedModelError, check_policy
from rlhf.padding import pad_right
from rlhf.reward_models import load_reward_model
from tests import pretended_device, tiny
from tests.families import EVERY, SIZES, model_of, policy
from tests.pretended_device import DEVICE
from tests.tiny import PROMPTS


@pytest.mark.parametrize("family", EVERY)
def test_every_family_passes_and_stays_as_it_was(family):
    lm = policy(family)
    check_policy(lm, PROMPTS)
    same = policy(family).state_dict()
    assert all(torch.equal(weight, same[name]) for name, weight in lm.state_dict().items())
    assert all(weight.requires_grad for weight in lm.parameters())
    assert lm.config.pad_token_id == SIZES["pad_token_id"]


@pytest.mark.parametrize("family", ["bloom", "gpt2", "llama", "opt"])
def test_a_gpu_has_deterministic_algorithms_for_a_models_own_logits(family, assert_close):
    lm, row = policy(family), PROMPTS[1]
    expected = family_checks._own_logits(lm, row)
    pretended_device.move(lm)
    with pretended_device.waits():
        assert lm.device == DEVICE
        found = family_checks._own_logits(lm, row).detach().cpu()
    assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)


EXPERTS = {"num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
# The family's own config is that of a model with pictures, of billions of weights.
TEXT_ALONE = {
    "head_dim": 8, "global_head_dim": 8, "sliding_window": 4, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
WITHOUT = {"olmoe": EXPERTS, "granitemoe": EXPERTS, "gemma4_text": TEXT_ALONE}


@pytest.mark.parametrize("kind", WITHOUT)
def test_a_family_without_a_classifier_in_the_library_passes(kind, tmp_path):
    lm = model_of(kind, **WITHOUT[kind])
    check_policy(lm, PROMPTS)
    lm.save_pretrained(tmp_path)
    scorer = load_reward_model(tmp_path, torch.device("cpu"), torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = [lm.base_model(torch.tensor([row])).last_hidden_state[0, -1] for row in PROMPTS]
        expected = torch.stack(hidden) @ scorer.head.weight[0]
        found = scorer(*pad_right(PROMPTS, tiny.PAD))
    assert (found - expected).abs().max() < 2e-5


def broken_by_dropout():
    lm = tiny.gpt2(dropout=0.5)
    lm.transformer.drop.train()
    return lm


def broken_by_nan():
    lm = tiny.llama()
    lm.get_input_embeddings().weight.data[5] = float("nan")
    return lm


def positions_that_padding_moves():
    """An OPT that counts positions from the left edge of a row, its padding included."""
    lm = policy("opt")
    embed = lm.model.decoder.embed_positions
    plain = embed.forward
    embed.forward = lambda mask, past=0, position_ids=None: plain(
        mask, past, torch.arange(position_ids.shape[1])[None] + past
    )
    return lm


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: model_of("mamba", state_size=4), "MambaForCausalLM fails where decoding with"),
        (lambda: model_of("bert"), "decoding with a cache gives the logits of the whole sequence"),
        (positions_that_padding_moves, "padding on either side changes no logit"),
        (broken_by_dropout, "the same sequence gives the same logits again"),
        (broken_by_nan, "its logits are not finite"),
        (lambda: tiny.llama(vocabulary=12), "gives id 15, but the model has embeddings for 12 ids"),
    ],
    ids=["mamba", "bert", "positions", "dropout", "nan", "vocabulary"],
)
def test_what_would_fail_later_is_named(build, said):
    with pytest.raises(UnsupportedModelError, match=said):
        check_policy(build(), PROMPTS)


def test_a_head_that_does_more_than_its_output_layer_is_found(monkeypatch):
    """What this project did to Gemma 2, Granite and Cohere."""
    monkeypatch.setattr(logits, "OUTPUT_LAYER_ALONE", frozenset({"gemma2"}))
    with pytest.raises(UnsupportedModelError, match="logits come from its hidden states, but"):
        check_policy(policy("gemma2"), PROMPTS)


def test_a_trunk_that_no_classifier_has_is_found():
    lm = policy("granite")
    lm.model.layers[0].extra = torch.nn.Linear(2, 2)
    with pytest.raises(UnsupportedModelError, match=r"another trunk \(layers\.0\.extra"):
        check_policy(lm, PROMPTS)
