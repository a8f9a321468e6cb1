"""How much memory a round of PPO takes, computed without a GPU and without the memory.

Models of tensors that have a shape and no content (torch's FakeTensorMode) go through what takes
memory in a round, by the library's own code: the rollout's cache of keys and values, two
micro-batches of an update, the optimiser's step. The most that exists at once is the plan.
Kernels are those of a CPU; in bfloat16 the loss is the one that a GPU gets.

    python -m benchmarks.memory_plan       prints the table of docs/models.md, in minutes
"""

import argparse
import contextlib
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    PreTrainedModel,
)

from benchmarks.live_tensors import Live
from rlhf import picked_logprobs
from rlhf.actor_critic import ActorCritic
from rlhf.compute import Compute
from rlhf.decoding_cache import decoding_cache
from rlhf.generation import prompt_parts
from rlhf.logits import language_model_head
from rlhf.recomputed_layers import recompute_layers
from rlhf.reward_models import RewardModel
from rlhf.token_chunks import chunked_logprobs_and_entropy
from rlhf.token_draws import draw_index

GIB = 2**30


@dataclass(frozen=True)
class Round:
    """A model's shape, and the round of PPO that it goes through."""

    name: str
    vocabulary: int
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool = True
    bfloat16: bool = True
    separate: bool = False
    """A value model of its own, beside a policy of which all weights are trained."""
    lora: bool = False
    micro_batch: int = 4
    recompute: bool = False
    rows: int = 128
    prompt: int = 256
    response: int = 512
    limit: float | None = None
    """GiB that it may take."""

    def config(self) -> LlamaConfig:
        """Of the policy; the other models have the same trunk."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.mlp,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.prompt + self.response,
            tie_word_embeddings=self.tied,
            num_labels=1,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )


SMALL = Round("135M", 49_152, 576, 1536, 30, 9, 3, recompute=True)
ONE = Round("1B", 151_936, 2048, 8192, 16, 32, 8, recompute=True)
EIGHT = Round("8B", 128_256, 4096, 14_336, 32, 32, 8, tied=False, lora=True, recompute=True)
ROUNDS = (
    replace(SMALL, name="135M, all weights, value model of its own", separate=True, limit=10),
    replace(SMALL, name="135M, the same, no layer recomputed", separate=True, recompute=False),
    replace(ONE, name="1B, all weights, value model of its own", separate=True, limit=60),
    replace(ONE, name="1B, the same, no layer recomputed", separate=True, recompute=False),
    replace(ONE, name="1B, all weights, shared value head", limit=40),
    replace(EIGHT, name="8B, adapters, shared value head", micro_batch=1, limit=48),
)


@dataclass(frozen=True)
class Plan:
    """Bytes of a round of PPO."""

    models: int
    """Weights of all models and the optimisers' moments."""
    rollout: int
    """The most during a rollout, models included."""
    update: int
    """The most during an update, models included."""

    @property
    def most(self) -> int:
        """What the round needs."""
        return max(self.rollout, self.update)


def plan(asked: Round) -> Plan:
    """Count a round."""
    with _as_on_a_gpu(asked), FakeTensorMode(), Live() as live:
        actor, reference, scorer = _models(asked)
        trained = [weight for weight in actor.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=1e-5, fused=True)
        for weight in trained:  # A first step makes the moments.
            weight.grad = torch.zeros_like(weight)
        _optimise(optimiser)
        gc.collect()
        models = live.now
        rollout = live.most_during(lambda: _rollout(actor.lm, asked))
        update = live.most_during(lambda: _update(actor, optimiser, asked))
        del reference, scorer
    return Plan(models, rollout, update)


@contextlib.contextmanager
def _as_on_a_gpu(asked: Round) -> Iterator[None]:
    """Rounds in bfloat16 have the loss of a GPU; its tensors lie on the CPU here."""
    before = picked_logprobs.RECORDED
    picked_logprobs.RECORDED = () if asked.bfloat16 else before
    try:
        yield
    finally:
        picked_logprobs.RECORDED = before


def _models(asked: Round) -> tuple[ActorCritic, PreTrainedModel, RewardModel]:
    """Trained weights in float32; what is frozen in the precision that it is computed in."""
    lm = LlamaForCausalLM(asked.config()).eval()
    scorer = RewardModel(LlamaForSequenceClassification(asked.config())).eval()
    _freeze(scorer, asked)
    reference = lm
    if asked.lora:
        _freeze(lm, asked)
        _adapt(lm)
    else:
        reference = LlamaForCausalLM(asked.config()).eval()
        _freeze(reference, asked)
    head = nn.Linear(asked.hidden, 1)
    trunk = LlamaModel(asked.config()).eval() if asked.separate else None
    actor = ActorCritic(lm, head, trunk)
    if asked.recompute:
        recompute_layers(actor)
    return actor, reference, scorer


class _Adapted(nn.Module):
    """A linear layer with an adapter of rank 16 (peft does not work on tensors without content)."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 16, bias=False)
        self.up = nn.Linear(16, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.base(x) + self.up(self.down(x)) * 2.0
        return added


def _adapt(lm: PreTrainedModel) -> None:
    trunk = lm.base_model
    linear = {name: part for name, part in trunk.named_modules() if isinstance(part, nn.Linear)}
    for name, layer in linear.items():
        parent, _, child = name.rpartition(".")
        setattr(trunk.get_submodule(parent), child, _Adapted(layer))


def _freeze(model: nn.Module, asked: Round) -> None:
    """What `rlhf.frozen` casts; its `Module.to` does not work on tensors without content."""
    model.requires_grad_(False)
    if asked.bfloat16:
        for part in model.modules():
            if isinstance(part, PreTrainedModel):
                for layer in part.base_model.modules():
                    if isinstance(layer, nn.Linear):
                        cast = layer.weight.detach().to(torch.bfloat16)
                        layer.weight = nn.Parameter(cast, requires_grad=False)


def _autocast(asked: Round) -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=asked.bfloat16)


@torch.no_grad()
def _rollout(lm: PreTrainedModel, asked: Round) -> None:
    """The prompts, then the last step: the cache is whole, and one token is drawn."""
    cache = decoding_cache(lm, asked.prompt + asked.response)
    parts = [part.stop - part.start for part in prompt_parts(lm, asked.rows, asked.prompt)]
    with _autocast(asked):
        for tokens in (*parts, 1):
            ids = torch.zeros(asked.rows, tokens, dtype=torch.int64)
            output = lm.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
            logits = language_model_head(lm, output.last_hidden_state[:, -1])
            draw_index(logits.softmax(dim=-1), torch.zeros(asked.rows, dtype=torch.float64))


def _update(actor: ActorCritic, optimiser: torch.optim.Optimizer, asked: Round) -> None:
    """Two micro-batches, the second beside the gradients of the first, and a step."""
    compute = Compute(torch.device("cpu"), "bfloat16" if asked.bfloat16 else "float32")
    with compute.keeping_casts():
        for _ in range(2):
            # As in rlhf.ppo_objective.
            for parts in (["values"], ["policy"]) if asked.separate else (["values", "policy"],):
                with compute.autocast():
                    loss = _loss(actor, asked, parts)
                loss.backward()  # type: ignore[no-untyped-call]
    _optimise(optimiser)


def _loss(actor: ActorCritic, asked: Round, parts: list[str]) -> torch.Tensor:
    """Something of a micro-batch's values, its log-probabilities, or both from one trunk."""
    ids = torch.zeros(asked.micro_batch, asked.prompt + asked.response, dtype=torch.int64)
    trunk = actor.value_trunk if parts == ["values"] else actor.lm.base_model
    assert trunk is not None
    assert actor.value_head is not None
    hidden = trunk(input_ids=ids, use_cache=False).last_hidden_state[:, asked.prompt - 1 : -1]
    found = torch.zeros(())
    if "values" in parts:
        found = found + actor.value_head(hidden).float().square().sum()
    if "policy" in parts:
        answers = ids[:, asked.prompt :]
        numbers = chunked_logprobs_and_entropy(
            actor.lm, hidden, answers, temperature=1.0, train_entropy=False
        )
        found = found + numbers.logprobs.sum()
    return found


def _optimise(optimiser: torch.optim.Optimizer) -> None:
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def table() -> Iterator[str]:
    """Lines of Markdown."""
    yield "| round | weights and moments | most in a rollout | most in an update | target |"
    yield "|---|---:|---:|---:|---:|"
    for asked in ROUNDS:
        found = plan(asked)
        limit = "–" if asked.limit is None else f"{asked.limit:.0f}"
        numbers = " | ".join(
            f"{size / GIB:.1f}" for size in (found.models, found.rollout, found.update)
        )
        yield f"| {asked.name} | {numbers} | {limit} |"


def main() -> int:
    """Entry point; the exit code."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print(*table(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
