"""What the walk through one PPO step runs on: the models of the last round, or small ones made now.

The small world: four kinds of complaint from eight customers, a two-layer model that has read some
responses to them, and PPO on rules for a few iterations, so that policy and reference differ.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf import pretrain
from rlhf.actor_critic import (
    VALUE_FUNCTION,
    load_value_function,
)
from rlhf.chat import encode_prompt
from rlhf.classifiers import load_classifier, load_text_encoder, reads_text
from rlhf.compute import Compute
from rlhf.ensembles import load_scorer
from rlhf.model_folders import ModelFolderError
from rlhf.models import load_policy, load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.params.base import EmbeddedModelParams
from rlhf.params.kl import AdaptiveKLParams
from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import train
from rlhf.ppo_actor import build_actor
from rlhf.ppo_update import PPOTraining
from rlhf.rollouts import PPOModels
from rlhf.rule_rewards import RuleRewards, build_rule_rewards
from rlhf.scoring import text_scores
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds, load_special_ids, special_ids
from rlhf.templates import render

SECTIONS: Mapping[str, Callable[..., Any]] = {
    "sampling": SamplingParams,
    "optimiser": OptimiserParams,
    "value_optimiser": OptimiserParams,
    "kl_adaptive": AdaptiveKLParams,
    "lora": LoraParams,
    "rewards": RewardMixParams,
}
"""Sections inside of `ppo`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that one PPO step needs."""

    origin: tuple[str, ...]
    """Lines that say where it comes from."""
    models: PPOModels
    tokenizer: PreTrainedTokenizerBase
    prompts: list[list[int]]
    params: PPOParams
    rules: RuleRewards | None
    tokens: SpecialIds


NO_ROUND = "no round below models/ yet (make repro makes some)"


def find_round(root: Path) -> str | None:
    """The last round below `root` of which all that it needs is there."""
    made = [key for key in rounds_of(root) if _is_whole(root / "models/rounds" / key)]
    return max(made, key=lambda key: (len(key), key), default=None)


def rounds_of(root: Path) -> list[str]:
    """The rounds below `root` whose policy is there, with SFT and the prompts."""
    wanted = [root / "models/sft/manifest.json", root / "data/prepared/prompts/heldout.jsonl"]
    if not all(path.is_file() for path in wanted):
        return []
    policies = root.glob("models/rounds/*/policy/manifest.json")
    return sorted(path.parts[-3] for path in policies)


def _is_whole(folder: Path) -> bool:
    """Whether a round has its reward model, or was rewarded without one."""
    manifest = json.loads((folder / "policy/manifest.json").read_text(encoding="utf-8"))
    rewards = manifest.get("params", {}).get("ppo", {}).get("rewards", {})
    return rewards.get("learned") == 0 or (folder / "reward/config.json").is_file()


def load_world(root: Path, key: str, compute: Compute) -> World:
    """The policy after round `key` with its parameters, its reward model, and SFT as reference.

    A policy that was trained by LoRA lies there merged, and is walked with all its weights.

    Raises:
        ModelFolderError: a folder is no model, or was written with parameters unknown here; or
            all prompts are too long.
    """
    policy = root / f"models/rounds/{key}/policy"
    params = _params_of(policy / "manifest.json")
    reward_model, by_text, folder = None, None, root / f"models/rounds/{key}/reward"
    if params.rewards.learned > 0 and reads_text(folder):
        model = load_classifier(folder, compute.device)
        by_text = text_scores(model, load_text_encoder(folder), compute)
    elif params.rewards.learned > 0:
        reward_model = load_scorer(folder, compute.device)
    actor = build_actor(load_policy(policy, compute.device), params)
    if actor.value_head is not None and (policy / VALUE_FUNCTION).is_file():
        load_value_function(actor, policy)
    tokenizer = load_tokenizer(policy)
    path = root / "data/prepared/prompts/heldout.jsonl"
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line)["prompt"] for line in file]
    encoded = [encode_prompt(tokenizer, row) for row in rows]
    prompts = [ids for ids in encoded if len(ids) <= params.max_prompt_tokens]
    texts = {tuple(ids): row for ids, row in zip(encoded, rows, strict=True)}
    scorer = f"reward model models/rounds/{key}/reward" if params.rewards.learned > 0 else "rules"
    asked = prompts[: params.rollout_size // params.samples_per_prompt]
    if not asked:
        raise ModelFolderError(
            f"{path}: none of {len(rows)} prompts has at most {params.max_prompt_tokens} tokens "
            f"(ppo.max_prompt_tokens of {key})"
        )
    responses = len(asked) * params.samples_per_prompt
    return World(
        origin=(
            f"policy models/rounds/{key}/policy, reference models/sft,",
            f"{scorer}; held-out prompts;",
            "parameters as in the policy's manifest.json",
        ),
        models=PPOModels(actor, load_policy(root / "models/sft", compute.device), reward_model),
        tokenizer=tokenizer,
        prompts=asked,
        params=replace(
            params,
            lora=None,
            rollout_size=responses,
            # Of a rollout there may be fewer prompts here, and they cannot be cut into as many.
            minibatches=math.gcd(responses, params.minibatches),
        ),
        rules=build_rule_rewards(params.rewards, tokenizer, learned=by_text, prompts=texts),
        tokens=load_special_ids(policy, tokenizer),
    )


def _params_of(manifest: Path) -> PPOParams:
    values = json.loads(manifest.read_text(encoding="utf-8"))["params"]["ppo"]
    try:
        return PPOParams(
            **{
                key: SECTIONS[key](**value) if key in SECTIONS and value is not None else value
                for key, value in values.items()
            }
        )
    except TypeError as error:
        raise ModelFolderError(f"{manifest}: made by another version of PPO: {error}") from None


NAMES = ("Ann", "Ben", "Eva", "Ida", "Kim", "Leo", "Sam", "Tom")
TROUBLES = (("lamp", "broken"), ("parcel", "late"), ("chair", "scratched"), ("mug", "missing"))
SMALL_MODEL = EmbeddedModelParams(
    vocabulary_size=400,
    hidden_size=48,
    heads=4,
    mlp_size=96,
    max_positions=64,
    steps=80,
    batch_size=16,
    sequence_length=48,
    optimiser=OptimiserParams(name="muon", lr=5e-3, muon_lr=2e-2, warmup_steps=5),
)
RATE = OptimiserParams(lr=1e-3, schedule="constant", warmup_steps=0)
SMALL_PPO = PPOParams(
    iterations=4,
    rollout_size=64,
    epochs=2,
    minibatches=2,
    micro_batch_size=64,
    sampling=SamplingParams(temperature=1.0, max_new_tokens=16),
    optimiser=RATE,
    value_optimiser=RATE,
    value_init="zero",
    kl_coef=0.1,
    rewards=RewardMixParams(learned=0.0, relevance=1.0, format=1.0),
)


def make_world(seeds: Seeds, compute: Compute, why: str = NO_ROUND) -> World:
    """Small models made from nothing in seconds; the policy has been trained for 4 iterations.

    Args:
        seeds: of the models, and of what the policy is trained on.
        compute: where, and in which precision.
        why: they are made and no round is taken, for the first line of the walk.
    """
    asked = [f"{name}: my {thing} is {state}." for name in NAMES for thing, state in TROUBLES]
    tokenizer = pretrain.train_tokenizer([*asked, *map(_reply, range(len(asked)), asked)], 400)
    documents = [
        _document(tokenizer, prompt, _reply(kind, prompt)) for kind in range(4) for prompt in asked
    ]
    model = pretrain.build_model(SMALL_MODEL, tokenizer, seeds)
    rows = pretrain.pack_documents(tokenizer, documents, SMALL_MODEL.sequence_length)
    pretraining = Training(model, Optimiser(SMALL_MODEL.optimiser, model.named_parameters()))
    for _ in pretrain.train(pretraining, rows, SMALL_MODEL, compute=compute, seeds=seeds):
        pass
    policy = pretrain.build_model(SMALL_MODEL, tokenizer, seeds)
    policy.load_state_dict(model.state_dict())
    actor = build_actor(policy, SMALL_PPO)
    world = World(
        origin=(
            f"small models made just now: {why};",
            f"policy after {SMALL_PPO.iterations} iterations of PPO, reference before them; the "
            "rules relevance + format as reward",
        ),
        models=PPOModels(actor, model, None),
        tokenizer=tokenizer,
        prompts=[encode_prompt(tokenizer, prompt) for prompt in asked],
        params=SMALL_PPO,
        rules=build_rule_rewards(SMALL_PPO.rewards, tokenizer),
        tokens=special_ids(tokenizer),
    )
    _move_policy(world, seeds, compute)
    return world


def _reply(kind: int, prompt: str) -> str:
    """One of four ways to reply, from helpful to careless."""
    name, thing = prompt.partition(":")[0], prompt.split()[2]
    return (
        f"Sorry, {name}. A new {thing} is on its way.",
        f"Sorry. A new {thing} is on its way.",
        "We will look at it. We will look at it.",
        f"my {thing} is fine",
    )[kind % 4]


def _document(tokenizer: PreTrainedTokenizerBase, prompt: str, response: str) -> str:
    messages = [{"role": "user", "content": prompt}]
    return f"{render(tokenizer, messages)}{response}"


def _move_policy(world: World, seeds: Seeds, compute: Compute) -> None:
    training = PPOTraining(world.models, world.params)
    prompts: Sequence[Sequence[int]] = world.prompts
    for _ in train(
        training,
        prompts,
        replace(world.params, kl_coef=0.0),
        world.tokens,
        compute=compute,
        seeds=Seeds(seeds.named("small world")),
        rules=world.rules,
    ):
        pass
