"""Stage `ppo`: PPO from the weights that the round starts from, with its reward model."""

import logging
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from rlhf.actor_critic import ActorCritic, save_value_function
from rlhf.batches import Rollout
from rlhf.chat import Prompt, decode_rows
from rlhf.compute import HOST, Compute
from rlhf.frozen import restore_frozen
from rlhf.lora import ADAPTER, take_adapter
from rlhf.models import load_policy, load_tokenizer
from rlhf.named_seeds import named_random
from rlhf.ppo import train
from rlhf.ppo_models import load_models
from rlhf.ppo_update import PPOTraining
from rlhf.recomputed_layers import recompute_layers
from rlhf.reward_functions import RewardFunctionError
from rlhf.rule_rewards import LearnedScore, WordListError, build_rule_rewards, said
from rlhf.samplers import Sampler
from rlhf.self_checks import check_frozen, check_models, frozen
from rlhf.sharding import Held
from rlhf.special_ids import SpecialIds, load_special_ids
from tasks.generation.rollouts import RolloutServer
from tasks.running.metrics_file import write_metrics
from tasks.running.models import (
    ERRORS,
    encode_prompts,
    load_prompts,
    seal_model,
    seeds_of,
    start_compute,
    write_model,
)
from tasks.running.outcome import StageEnd
from tasks.running.progress import Progress
from tasks.running.resuming import Checkpoints
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import write_json_lines
from tasks.scoring.gold import gold_scores
from tasks.scoring.learned import text_scorer
from tasks.tracking.spool import Output

INPUTS = ("data/prepared", "models/sft", "{start}", "models/rounds/{key}/reward")

log = logging.getLogger(__name__)

SFT = Path("models/sft")
"""The reference policy of the KL."""

GOLD = "objective/gold"
"""The curve of the gold score, the only metric that is not a field of PPOMetrics."""

SAMPLES = 4
"""How many responses of each rollout are kept for people to read."""


def run(stage: Stage) -> None:
    """Train the policy by PPO and write it with its value function."""
    params, key = stage.params.ppo, stage.round_key
    compute, seeds = start_compute(stage.params.run, training=True), seeds_of(stage)
    folder = SFT if params.start_sft == 1 else Path(stage.round.start)
    tokenizer = load_tokenizer(folder)
    tokens = load_special_ids(folder, tokenizer)
    reward, by_text = _learned(stage, compute)
    rows = load_prompts(Path("data/prepared/prompts/train.jsonl"))
    named_random(stage.params.run.seed, "ppo", str(key)).shuffle(rows)
    kept, prompts, too_long = encode_prompts(rows, tokenizer, params.max_prompt_tokens)
    draws = seeds.torch("ppo", "lora")
    models = load_models(folder, SFT, reward, params, compute, prompts=prompts[:4], draws=draws)
    models = models._replace(sampler=_sampler(stage, tokenizer, tokens, compute))
    asked = {tuple(ids): row["prompt"] for row, ids in zip(kept, prompts, strict=True)}
    rules = build_rule_rewards(params.rewards, tokenizer, learned=by_text, prompts=asked)
    at_first = frozen(models)
    at_start = folder == SFT
    with compute.autocast():
        check_models(models, prompts[:8], tokens, starts_at_reference=at_start)
    held = Held(models.actor, divided=stage.params.run.sharded)
    if params.recompute_layers:
        recompute_layers(models.actor)
    training = PPOTraining(models, params, held)
    samples: list[dict[str, Any]] = []
    checkpoints = Checkpoints(stage, training, samples)
    progress = Progress(stage.name, params.iterations, "iterations", done=training.iteration)
    loop = train(training, prompts, params, tokens, compute=compute, seeds=seeds, rules=rules)
    for result in checkpoints.after_each(loop):
        last = result.metrics
        texts = Texts.of(result.rollout, tokenizer, asked)
        stage.log(training.iteration, last.curves() | gold_curve(texts))
        samples += _samples(result.rollout, texts, training.iteration)
        quality = {
            "clip": last.clip_fraction,
            "ev": last.explained_variance,
            "truncated": last.truncated_weights,
        }
        found = {name: value for name, value in quality.items() if value is not None}
        progress.step(1, score=last.score, kl=last.kl, **found)
    progress.close()
    if training.end is not None:
        log.info("%s: %s", stage.name, training.end)
    check_frozen(models, at_first)
    if training.average is not None:
        training.average.publish()
    _write_policy(stage, held.whole(), tokenizer)
    _write_results(stage, training, too_long, samples)


def _learned(stage: Stage, compute: Compute) -> tuple[Path | None, LearnedScore | None]:
    """Where the reward model lies that scores the policy's ids; or the scores of one of texts."""
    params, folder = stage.params.ppo, Path(f"models/rounds/{stage.round_key}/reward")
    if params.rewards.learned == 0:
        return None, None
    if (by_text := text_scorer(folder, compute)) is None:
        return folder, None
    if params.has_value_function() and params.value_init == "reward":
        raise StageEnd(
            "bad_input",
            f"ppo.value_init: reward, but {stage.params.reward.model} (reward.model) has a "
            "tokenizer or a head of its own, so no value model can start from it; take zero",
        )
    return None, by_text


def _sampler(
    stage: Stage, tokenizer: PreTrainedTokenizerBase, tokens: SpecialIds, compute: Compute
) -> Sampler | None:
    """Who samples in the policy's place (`ppo.rollouts`)."""
    if stage.params.ppo.rollouts == "local":
        return None
    return RolloutServer(stage, tokenizer, tokens, compute, sft=SFT)


def _write_policy(stage: Stage, actor: ActorCritic, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the policy with its value function and its adapter, where it has them."""
    adapter = None
    if stage.params.ppo.lora is not None:
        restore_frozen(actor.lm, lambda: load_policy(SFT, HOST))
        adapter = take_adapter(actor.lm)
    changed = adapter.changed if adapter is not None else ()
    path = f"models/rounds/{stage.round_key}/policy"
    target = write_model(stage, actor.lm, tokenizer, path, changed)
    if adapter is not None:
        adapter.save(target / ADAPTER)
    if actor.value_head is not None:
        save_value_function(actor, target)
    seal_model(stage, target)


def _write_results(
    stage: Stage, training: PPOTraining, too_long: int, samples: Sequence[dict[str, Any]]
) -> None:
    """Writes metrics, curves and samples, and gives them to MLflow with the policy."""
    key, params = stage.round_key, stage.params.ppo
    metrics = {
        "round": key,
        "iterations": training.iteration,
        **({} if params.rollouts == "local" else {"rollouts": params.rollouts}),
        **({} if training.end is None else {"ended_early": training.end}),
        "too_long": too_long,
        **_last_curves(stage.history),
    }
    results = stage.staging.directory(f"results/ppo/{key}")
    write_metrics(results, metrics)
    stage.write_history(results)
    write_json_lines(results / "samples.jsonl", samples)
    stage.final(metrics)
    stage.keep(
        Output("policy", Path(f"models/rounds/{key}/policy")),
        Output("artifact", Path(f"results/ppo/{key}")),
    )


def _last_curves(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of the last iteration, without the gold score, which training never sees."""
    last = history[-1] if history else {}
    return {name: value for name, value in last.items() if name not in ("step", GOLD)}


class Texts(NamedTuple):
    """A rollout in words."""

    prompts: list[str]
    """What was asked, without the chat template's own words."""
    responses: list[str]
    finished: list[bool]

    @classmethod
    def of(
        cls,
        rollout: Rollout,
        tokenizer: PreTrainedTokenizerBase,
        asked: Mapping[tuple[int, ...], Prompt],
    ) -> "Texts":
        """Of a rollout; `asked` has the prompt of each row of ids."""
        rows = zip(rollout.prompt_ids.cpu(), rollout.prompt_mask.cpu(), strict=True)
        prompts = [said(asked[tuple(ids[mask].tolist())]) for ids, mask in rows]
        responses = decode_rows(tokenizer, rollout.response_ids, rollout.response_mask)
        return cls(prompts, responses, rollout.ended.tolist())


def gold_curve(texts: Texts) -> dict[str, float]:
    """Mean gold score of a rollout, which training never sees; nothing without a rubric."""
    gold = gold_scores(*texts)
    return {} if gold is None else {GOLD: statistics.fmean(gold)}


def _samples(rollout: Rollout, texts: Texts, iteration: int) -> list[dict[str, Any]]:
    """Some responses of the rollout, with whether they ended by themselves, and their scores."""
    chosen = random.Random(iteration).sample(range(len(rollout)), min(SAMPLES, len(rollout)))
    scores = rollout.scores.tolist()
    return [
        {
            "iteration": iteration,
            "prompt": texts.prompts[row],
            "response": texts.responses[row],
            "finished": texts.finished[row],
            "score": round(scores[row], 4),
        }
        for row in chosen
    ]


if __name__ == "__main__":
    errors = {**ERRORS, RewardFunctionError: "bad_input", WordListError: "bad_input"}
    sys.exit(run_stage("ppo", run, inputs=INPUTS, per_round=True, errors=errors))
