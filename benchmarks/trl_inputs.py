"""Models and arrays for the parity check with TRL: random, from fixed seeds."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from rlhf.actor_critic import build_actor_critic
from rlhf.batches import Rollout
from rlhf.compute import Compute
from rlhf.draws import draw_table
from rlhf.params.sampling import SamplingParams
from rlhf.reward_models import RewardModel
from rlhf.rollouts import MicroBatches, PPOModels, collect_rollout
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds

PAD, EOS, VOCABULARY = 0, 1, 16
RESPONSES = 24
NUMBERS = {
    "temperature": 0.7,
    "kl_coef": 0.1,
    "gamma": 0.99,
    "lam": 0.95,
    "missing_end_penalty": 1.0,
    "clip_range": 0.2,
    "value_coef": 0.1,
}


def make_models() -> tuple[PPOModels, PreTrainedModel]:
    """A policy with values, a reference and a reward model; random weights from fixed seeds."""

    def config() -> LlamaConfig:
        return LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            initializer_range=0.1,
            num_labels=1,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )

    def draw(seed: int, build: Callable[[LlamaConfig], PreTrainedModel]) -> PreTrainedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(config()).eval()

    policy, reference = draw(0, LlamaForCausalLM), draw(1, LlamaForCausalLM)
    classifier = draw(2, LlamaForSequenceClassification)
    reward_model = RewardModel(classifier)
    actor = build_actor_critic(policy, reward_model=reward_model, separate=True)
    return PPOModels(actor, reference, reward_model), classifier


def make_inputs(
    models: PPOModels, classifier: PreTrainedModel, folder: Path
) -> tuple[Rollout, dict[str, Tensor]]:
    """A rollout of our own sampler, and what TRL is given: its tokens, and numbers in float64.

    The models are saved below `folder`, where TRL reads them.
    """
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(2, 6, (96,), generator=draw).tolist()
    prompts = [torch.randint(2, VOCABULARY, (n,), generator=draw).tolist() for n in lengths]
    rollout = collect_rollout(
        models,
        prompts,
        SamplingParams(temperature=NUMBERS["temperature"], max_new_tokens=12),
        SpecialIds(EOS, PAD),
        micro_batches=MicroBatches(len(prompts)),
        compute=Compute(torch.device("cpu"), "float32"),
        draws=draw_table(Seeds(0).named("parity"), prompts, steps=12),
    )
    # TRL finds padding by its id, so a response in which the policy wrote that token is cut there;
    # such rows are left out. Ours knows padding by masks only.
    wrote_pad = ((rollout.response_ids == PAD) & rollout.response_mask).any(dim=1)
    rollout = rollout.select((~wrote_pad).nonzero().flatten()[:RESPONSES])
    assert len(rollout) == RESPONSES
    assert rollout.ended.any()
    assert not rollout.ended.all()
    models.actor.lm.save_pretrained(folder / "policy")
    classifier.save_pretrained(folder / "reward")
    shape = rollout.response_ids.shape
    wide = (shape[0], shape[1] + 1)
    given = {
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in NUMBERS.items()},
        "prompt_ids": torch.where(rollout.prompt_mask, rollout.prompt_ids, PAD),
        "response_ids": rollout.response_ids,
        "response_mask": rollout.response_mask,
        **{
            name: getattr(rollout, name).double()
            for name in ("logprobs", "ref_logprobs", "values", "scores")
        },
        "advantages": torch.randn(shape, generator=draw, dtype=torch.float64) + 0.3,
        "returns": torch.randn(shape, generator=draw, dtype=torch.float64),
        "new_logits": torch.randn(*wide, VOCABULARY, generator=draw, dtype=torch.float64) * 2,
        "new_values": torch.randn(wide, generator=draw, dtype=torch.float64),
    }
    return rollout, given
