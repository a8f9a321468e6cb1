"""The checks that a real run makes of itself: they pass on sound models and name what is broken."""

import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from rlhf.actor_critic import build_actor_critic
from rlhf.logits import sequence_hidden
from rlhf.reward_models import RewardModel
from rlhf.rollouts import PPOModels
from rlhf.self_checks import check_frozen, check_models, fingerprint, frozen
from rlhf.stopping import SelfCheckError
from tests import tiny
from tests.tiny import EOS, PROMPTS, TOKENS


class ReadsTheLastPosition(RewardModel):
    """A reward model with the most common defect: it scores the padding of short rows."""

    def raw_scores(self, ids, mask, **_):
        hidden = sequence_hidden(self.classifier.base_model, ids, mask)
        return self.head(hidden[:, -1]).squeeze(-1)


class CountsPaddingAsPositions(RewardModel):
    """A reward model whose positions start at the edge of the batch, not at the first token."""

    def raw_scores(self, ids, mask, **_):
        hidden = self.classifier.base_model(
            input_ids=torch.where(mask, ids, 0),
            attention_mask=mask.long(),
            position_ids=torch.arange(ids.shape[1]).expand_as(ids),
        ).last_hidden_state
        last = torch.where(mask, torch.arange(ids.shape[1]), -1).amax(dim=1)
        return self.head(hidden[torch.arange(len(ids)), last]).squeeze(-1)


def models(*, policy=None, reward_model=None) -> PPOModels:
    actor = build_actor_critic(policy or tiny.llama(), reward_model=None, separate=False)
    return PPOModels(actor, tiny.llama(), reward_model or tiny.reward_model())


def test_sound_models_pass():
    check_models(models(), PROMPTS, TOKENS, starts_at_reference=True)


def test_a_reward_model_with_few_positions_is_not_asked_for_more():
    """Rows that the params allow fit its table; the check itself has to."""
    config = GPT2Config(
        vocab_size=tiny.VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=16, num_labels=1,
        pad_token_id=tiny.PAD,
    )  # fmt: skip
    short = RewardModel(GPT2ForSequenceClassification(config)).eval()
    check_models(models(reward_model=short), PROMPTS, TOKENS, starts_at_reference=True)


@pytest.mark.parametrize(
    "broken",
    [
        ReadsTheLastPosition(tiny.reward_model().classifier),
        CountsPaddingAsPositions(tiny.gpt2_reward_model().classifier),
    ],
    ids=["last position", "positions"],
)
def test_s41_a_reward_model_that_depends_on_padding_is_found(broken):
    with pytest.raises(SelfCheckError, match="'the reward model is invariant to padding' failed"):
        check_models(models(reward_model=broken), PROMPTS, TOKENS, starts_at_reference=True)


def test_s11_a_policy_that_is_not_the_reference_is_found():
    other = tiny.llama()
    other.model.layers[1].mlp.down_proj.weight.data[0, 0] += 0.01
    with pytest.raises(SelfCheckError, match="'the policy equals the reference at step 0' failed"):
        check_models(models(policy=other), PROMPTS, TOKENS, starts_at_reference=True)


def test_s11_a_later_round_may_start_from_another_policy():
    check_models(models(policy=tiny.llama(1)), PROMPTS, TOKENS, starts_at_reference=False)


def test_s38_a_round_that_leaves_the_frozen_models_alone_passes():
    one = models()
    before = frozen(one)
    one.actor.lm.lm_head.weight.data += 1.0
    check_frozen(one, before)


@pytest.mark.parametrize("part", ["reference", "reward model"])
def test_s38_a_frozen_model_that_has_changed_is_named(part):
    one = models()
    before = frozen(one)
    model = one.reference if part == "reference" else one.reward_model
    next(model.parameters()).data[0, 0] += 1e-6
    with pytest.raises(SelfCheckError, match=f"'the {part} is unchanged at the end' failed"):
        check_frozen(one, before)


def test_s38_the_fingerprint_changes_with_any_weight_and_with_nothing_else():
    lm = tiny.llama()
    before = fingerprint(lm)
    assert fingerprint(tiny.llama()) == before
    assert fingerprint(tiny.llama(1)) != before
    lm(torch.tensor([[3, EOS]]))
    assert fingerprint(lm) == before
    for weight in lm.parameters():
        kept = weight.data.clone()
        weight.data.view(-1)[-1] = torch.nextafter(kept.view(-1)[-1], torch.tensor(1e9))
        assert fingerprint(lm) != before
        weight.data.copy_(kept)
    assert fingerprint(lm) == before
