"""The checks that a real run makes of itself: they pass on sound models and name what is broken."""

import pytest
import torch
from transformers import AutoConfig, GPT2Config, GPT2ForSequenceClassification

from rlhf.actor_critic import build_actor_critic
from rlhf.compute import Compute
from rlhf.frozen import freeze
from rlhf.logits import sequence_hidden
from rlhf.padding import pad_left, pad_right
from rlhf.reward_heads import build_classifier
from rlhf.reward_models import RewardModel
from rlhf.rollouts import PPOModels
from rlhf.self_checks import check_frozen, check_models, fingerprint, frozen, rounding
from rlhf.stopping import SelfCheckError
from tests import tiny
from tests.families import SIZES
from tests.tiny import EOS, PROMPTS, TOKENS

BFLOAT16 = Compute(torch.device("cpu"), "bfloat16")


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


def mixture(seed: int) -> RewardModel:
    """Two experts of eight for each token, which a rounding of bfloat16 often decides."""
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "num_labels": 1}
    config = AutoConfig.for_model("mixtral", **SIZES | experts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = build_classifier(config).eval()
        for layer in classifier.model.layers:
            # What all logits of a router have in common changes no choice but for its rounding.
            layer.mlp.gate.weight.data += 8 * torch.randn(config.hidden_size)
    return freeze(RewardModel(classifier), BFLOAT16)


def prompts(seed: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 40, (8,), generator=draw).tolist()
    return [torch.randint(2, tiny.VOCABULARY, (n,), generator=draw).tolist() for n in lengths]


@torch.no_grad()
def unsteady(seed: int) -> bool:
    """Whether a row in another batch moves by more than rounding products does."""
    model, rows = mixture(seed), [[*prompt, EOS] for prompt in prompts(seed)]
    narrow, wide = pad_right(rows, EOS), pad_left([*rows, [EOS] * 99], EOS)
    with BFLOAT16.autocast():
        shift = (model(*narrow) - model(*wide)[:8]).abs().max().item()
        return shift > max(rounding(model, *narrow), 0.01)


def test_a_mixture_that_takes_another_expert_by_a_rounding_is_sound():
    """And one that reads padding is not, whatever its experts."""
    seed = next(filter(unsteady, range(60)))
    model = mixture(seed)
    before = fingerprint(model)
    with BFLOAT16.autocast():
        check_models(models(reward_model=model), prompts(seed), TOKENS, starts_at_reference=True)
        assert fingerprint(model) == before
        broken = ReadsTheLastPosition(model.classifier)
        with pytest.raises(SelfCheckError, match="'the reward model is invariant to padding'"):
            check_models(
                models(reward_model=broken), prompts(seed), TOKENS, starts_at_reference=True
            )


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
