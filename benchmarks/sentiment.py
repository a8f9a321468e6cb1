"""Sentiment continuation in miniature: PPO on a word list, before and after, on unseen prompts.

    python -m benchmarks.sentiment                 # prints the table
    python -m benchmarks.sentiment --write         # and writes docs/sentiment.md
    python -m benchmarks.sentiment --model FOLDER  # with a GPT-2 in Hugging Face format

The classic experiment of the field (Ziegler et al. 2019): continue the beginning of a review so
that it praises more. The reward is positive minus negative words; the KL penalty is what keeps the
text a review. The same round without the penalty is the control. Parameters:
benchmarks/sentiment.yaml, laid over params.yaml. Minutes on one thread.
"""
# ruff: noqa: I001 (tasks comes first: it chooses the bits before torch is imported)

import tasks  # noqa: F401

import argparse
import copy
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from ruamel.yaml import YAML
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.sentiment_page import Measures, page, table
from benchmarks.sentiment_reviews import Review, write_reviews
from rlhf import pretrain
from rlhf.chat import check_tokenizer, decode_response
from rlhf.compute import Compute, choose_device, make_deterministic
from rlhf.evaluation import distinct_ngrams, kl_to_reference
from rlhf.intervals import mean_interval
from rlhf.logprobs import token_logprobs
from rlhf.ppo_actor import build_actor
from rlhf.logits import response_logits
from rlhf.models import load_policy
from rlhf.optimisers import Optimiser, Training
from rlhf.padding import pad_left, pad_right
from rlhf.params.ppo import PPOParams
from rlhf.ppo import train
from rlhf.ppo_update import PPOTraining
from rlhf.responses import respond
from rlhf.rollouts import PPOModels
from rlhf.rule_rewards import build_rule_rewards, sentiment_reward
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds
from tasks.params.loading import Params, ParamsError, load_params
from tasks.params.overlays import lay_over

ROOT = Path(__file__).parents[1]
OVERLAY = ROOT / "benchmarks" / "sentiment.yaml"
TRAINING_REVIEWS = 3000
TRAINING_PROMPTS = 1000
PAGE = ROOT / "docs" / "sentiment.md"


@dataclass(frozen=True)
class World:
    """What the round starts from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    params: Params
    compute: Compute
    seeds: Seeds

    def tokens(self) -> SpecialIds:
        return SpecialIds(int(self.tokenizer.eos_token_id), int(self.tokenizer.pad_token_id))

    def encode(self, reviews: Sequence[Review]) -> list[list[int]]:
        """Beginnings as plain text, without a chat template."""
        texts = [review.prompt for review in reviews]
        return [list(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]


def read_params(model: Path | None, changes: Mapping[str, Any], folder: Path) -> Params:
    """params.yaml with the overlay, `changes` and the model; the result is checked as usual."""
    yaml = YAML(typ="safe")
    merged: Mapping[str, object] = yaml.load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    merged = lay_over(merged, yaml.load(OVERLAY.read_text(encoding="utf-8")))
    merged = lay_over(merged, changes)
    if model is not None:
        merged = lay_over(merged, {"base": {"model": str(model.resolve())}})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "params.yaml"
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(merged, file)
    return load_params(path)


def start(params: Params) -> World:
    """The base model: pre-trained here on reviews, or the one that params.yaml names."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    make_deterministic(params.run.threads)
    compute = Compute(choose_device(params.run.device), params.run.precision)
    seeds = Seeds(params.run.seed)
    if params.base.model is not None:
        folder = Path(params.base.model)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if tokenizer.pad_token is None:
            # Never embedded: ids under padding are replaced by 0. It has to differ from the end.
            tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
        check_tokenizer(tokenizer, source=str(folder))
        return World(load_policy(folder, compute.device), tokenizer, params, compute, seeds)
    embedded = params.base.embedded
    texts = _corpus(params, seeds)
    tokenizer = pretrain.train_tokenizer(texts, embedded.vocabulary_size)
    model = pretrain.build_model(embedded, tokenizer, seeds).to(compute.device)
    rows = pretrain.pack_documents(tokenizer, texts, embedded.sequence_length)
    training = Training(model, Optimiser(embedded.optimiser, model.named_parameters()))
    for step in pretrain.train(training, rows, embedded, compute=compute, seeds=seeds):
        if training.step % 50 == 0:
            _say(f"base  {training.step}/{embedded.steps}  loss {step.loss:.3f}")
    return World(model, tokenizer, params, compute, seeds)


def _corpus(params: Params, seeds: Seeds) -> list[str]:
    """What the base model reads: films of both kinds, but no review with a held-out prompt."""
    seed = seeds.named("sentiment", "corpus")
    part = TRAINING_REVIEWS // 4
    known = write_reviews(TRAINING_REVIEWS - part, seed, held_out=False)
    kept_back = {review.prompt for review in _held_out(params, seeds)}
    others = write_reviews(part, seed, held_out=True)
    return [*(r.text for r in known), *(r.text for r in others if r.prompt not in kept_back)]


def _held_out(params: Params, seeds: Seeds) -> list[Review]:
    seed = seeds.named("sentiment", "held-out prompts")
    return write_reviews(params.evaluate.prompts, seed, held_out=True)


def train_policy(world: World, params: PPOParams, name: str) -> PreTrainedModel:
    """PPO from the base model on the rules of `params`; the base model stays as it is."""
    policy = copy.deepcopy(world.model)
    actor = build_actor(policy, params)
    training = PPOTraining(PPOModels(actor, world.model, None), params)
    seed = world.seeds.named("sentiment", "training prompts")
    prompts = world.encode(write_reviews(TRAINING_PROMPTS, seed, held_out=False))
    loop = train(
        training,
        prompts,
        params,
        world.tokens(),
        compute=world.compute,
        seeds=world.seeds,
        rules=build_rule_rewards(params.rewards, world.tokenizer),
    )
    for result in loop:
        row = result.metrics
        explained = row.explained_variance
        _say(
            f"{name}  {training.iteration}/{params.iterations}  "
            f"sentiment {row.components['sentiment']:+.2f}  kl {row.kl:.2f}  "
            f"clip {row.clip_fraction:.2f}"
            + ("" if explained is None else f"  ev {explained:+.2f}")
        )
    return policy


def measure(world: World, policy: PreTrainedModel, name: str) -> Measures:
    """Responses to the held-out prompts and the measures of them."""
    params = world.params.evaluate
    rules = build_rule_rewards(world.params.ppo.rewards, world.tokenizer)
    assert rules is not None
    reviews = _held_out(world.params, world.seeds)
    prompts = world.encode(reviews)
    rows = respond(
        policy,
        prompts,
        params.sampling,
        world.tokens(),
        batch_size=params.batch_size,
        compute=world.compute,
        seed=world.seeds.named("evaluate", "sampling"),
    )
    texts = [decode_response(world.tokenizer, row).strip() for row in rows]
    values = tuple(sentiment_reward(text, words=rules.words) for text in texts)
    kl = kl_to_reference(
        policy, world.model, prompts, rows, params, world.tokens(), compute=world.compute
    )
    return Measures(
        name=name,
        sentiment=mean_interval(values),
        values=values,
        kl=mean_interval(kl),
        distinct_2=distinct_ngrams(texts, 2),
        perplexity=_perplexity(world, prompts, rows),
        words=sum(len(text.split()) for text in texts) / len(texts),
        samples=tuple(
            f"{review.prompt} [{text}]" for review, text in zip(reviews, texts, strict=True)
        ),
    )


@torch.no_grad()
def _perplexity(
    world: World, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> float:
    """Of the responses under the base model: exp of the mean negative log-probability per token."""
    total, count = 0.0, 0
    size, pad = world.params.evaluate.batch_size, world.tokens().pad
    for begin in range(0, len(prompts), size):
        rows = slice(begin, begin + size)
        batch = [*pad_left(prompts[rows], pad), *pad_right(responses[rows], pad)]
        ids, mask, response_ids, response_mask = (
            tensor.to(world.compute.device) for tensor in batch
        )
        logits = response_logits(world.model, ids, mask, response_ids, response_mask)
        safe = torch.where(response_mask, response_ids, 0)
        logprobs = token_logprobs(logits, safe, temperature=1.0)
        total -= logprobs[response_mask].sum().item()
        count += int(response_mask.sum())
    return math.exp(total / count)


def run(world: World) -> list[Measures]:
    """The base model, the policy and the control without a KL penalty."""
    params = world.params.ppo
    tuned = train_policy(world, params, "ppo")
    control = train_policy(world, replace(params, kl_coef=0.0), "no penalty")
    return [
        measure(world, world.model, "before"),
        measure(world, tuned, f"after PPO, kl_coef {params.kl_coef:g}"),
        measure(world, control, "control: after PPO, kl_coef 0"),
    ]


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sentiment",
        description="PPO on a word list: before, after, and without a KL penalty.",
    )
    parser.add_argument("--model", type=Path, help="a causal model in Hugging Face format")
    parser.add_argument("--write", action="store_true", help="write docs/sentiment.md")
    options = parser.parse_args(arguments)
    try:
        world = start(read_params(options.model, {}, ROOT / ".work" / "sentiment"))
    except (ParamsError, ValueError) as error:
        _say(f"sentiment: {error}")
        return 2
    found = run(world)
    print("\n".join(table(found)))
    if options.write:
        PAGE.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
