"""Stage `reward`: the reward model, trained on the labels so far, measured on the newest.

Before PPO spends a round on it, probes ask whether it knows what any reward model has to know, and
the fresh labels whether it still orders what the newest policy writes (docs/reward-guards.md).
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from preferences.loading import load_preferences
from preferences.records import Preference
from rlhf import reward
from rlhf.classifier_padding import set_padding
from rlhf.classifiers import (
    READS_TEXT,
    has_score_head,
    how_it_reads,
    load_classifier,
    load_text_encoder,
    same_tokens,
)
from rlhf.compute import HOST, Compute
from rlhf.ensembles import (
    join,
    load_members,
    member_folder,
    members_of,
    save_members,
    starting_members,
)
from rlhf.frozen import cast_frozen, restore_frozen
from rlhf.lora import ADAPTER, Adapter, add_adapter, take_adapter
from rlhf.model_folders import is_reward_model
from rlhf.models import load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.packing import check_packing
from rlhf.params.reward import NO_MODEL
from rlhf.positions import check_positions
from rlhf.recomputed_layers import recompute_layers
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from rlhf.sharding import Held
from tasks.running.metrics_file import write_metrics
from tasks.running.models import ERRORS, seal_model, seeds_of, start_compute, write_model
from tasks.running.outcome import StageEnd
from tasks.running.progress import Progress, say_left_out
from tasks.running.resuming import Checkpoints
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.scoring import reward_guards
from tasks.scoring.normaliser import normalise
from tasks.scoring.reward_accuracy import accuracy_before, asked, measure, passes, write_reliability
from tasks.scoring.reward_guards import Known, ask, end_where_they_say_so
from tasks.tracking.spool import Output
from tasks.workspace.work_folder import BLOCKED, STOPPED

INPUTS = (
    "models/sft",
    "{reward_model}",
    "data/rounds/{key}/comparisons.jsonl",
    "data/rounds/{key}/preferences",
)

log = logging.getLogger(__name__)


def run(stage: Stage) -> None:
    """Train on the preferences so far, or take the model that the round or params.yaml names."""
    stage.remove_earlier(BLOCKED, STOPPED)
    if stage.params.reward.model == NO_MODEL:
        _publish_none(stage)
        return
    compute = start_compute(stage.params.run, training=True)
    train, heldout = _preferences(stage)
    limit = stage.params.reward.max_tokens
    fresh = [row for row in heldout if row.round == stage.round_key]
    before = accuracy_before(Path(stage.round.reward_model), fresh, limit, compute)
    metrics = {"round": stage.round_key, "pairs": len(train), "accuracy_before": before}
    made = (_trained if stage.params.reward.model is None else _others)(stage, train, compute)
    short = asked(made.model, made.encoder, heldout, limit)
    if too_long := len(heldout) - len(short):
        metrics["heldout_too_long"] = too_long
    heldout = short
    fresh = [row for row in heldout if row.round == stage.round_key]
    train = train if made.trained else asked(made.model, made.encoder, train, limit)
    progress = Progress(stage.name, passes(made.model) + reward_guards.PASSES, "passes")
    numbers, gaps = measure(made.model, made.encoder, fresh, heldout, compute, progress=progress)
    metrics |= made.metrics | numbers
    known = Known(train, heldout, trained=made.trained)
    guards = ask(stage, made.model, made.encoder, known, compute, progress=progress)
    progress.close()
    end_where_they_say_so(stage, guards)
    _write(stage, made)
    key = stage.round_key
    results = stage.staging.directory(f"results/reward/{key}")
    write_metrics(results, metrics)
    write_reliability(results / "reliability.csv", gaps, heldout)
    guards.write(results)
    stage.write_history(results)
    stage.final(metrics)
    stage.keep(
        Output("reward_model", Path(f"models/rounds/{key}/reward")),
        Output("artifact", Path(f"results/reward/{key}")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The round's reward model, ready to score."""

    model: RewardModel
    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    trained: bool
    """By this stage: then what is held out from training is all that it has not seen."""
    metrics: dict[str, Any]
    adapters: Sequence[Adapter] = ()


def _trained(stage: Stage, train: Sequence[Preference], compute: Compute) -> Made:
    """A model trained on the preferences, or the one that the round starts from, as it is."""
    params, start = stage.params.reward, Path(stage.round.reward_model)
    tokenizer = load_tokenizer(start)
    encoder = Encoder(tokenizer)
    retrain = params.retrain or not is_reward_model(start)
    members = (
        load_members(start, compute.device) if not retrain else _fresh(stage, start, compute.device)
    )
    metrics: dict[str, Any] = {}
    adapters: list[Adapter] = []
    if retrain:
        members, metrics = _train(stage, members, encoder, train, compute)
        if params.lora is not None:
            restore_frozen(
                nn.ModuleList(members), lambda: nn.ModuleList(_fresh(stage, start, HOST))
            )
            adapters = [take_adapter(member.classifier) for member in members]
    model = join(members, params.ensemble_k)
    if retrain:
        normalise(stage, model, encoder, compute)
    return Made(
        model=model,
        encoder=encoder,
        tokenizer=tokenizer,
        trained=retrain,
        metrics=metrics,
        adapters=adapters,
    )


def _others(stage: Stage, _: Sequence[Preference], compute: Compute) -> Made:
    """The model of `reward.model`, as it is but for the normaliser, which is fitted to SFT."""
    folder, sft = Path(str(stage.params.reward.model)), load_tokenizer(Path("models/sft"))
    model: RewardModel = load_classifier(folder, compute.device)
    text = load_text_encoder(folder)
    encoder: Encoder = text
    config = model.classifier.config
    if config.num_labels == 1 and has_score_head(model) and same_tokens(text.tokenizer, sft):
        # The policy's own ids then: nothing is lost on the way through text.
        model, encoder = RewardModel(model.classifier), Encoder(sft)
    else:
        setattr(config, READS_TEXT, True)
        log.info("%s: %s", stage.name, how_it_reads(folder, config))
    normalise(stage, model, encoder, compute)
    return Made(model=model, encoder=encoder, tokenizer=text.tokenizer, trained=False, metrics={})


def _publish_none(stage: Stage) -> None:
    """No reward model: the files that later stages expect, which say so."""
    folder = stage.staging.directory(f"models/rounds/{stage.round_key}/reward")
    words = "reward.model is none: this round has no reward model.\n"
    (folder / "README.md").write_text(words, encoding="utf-8")
    seal_model(stage, folder)
    results = stage.staging.directory(f"results/reward/{stage.round_key}")
    metrics = {"round": stage.round_key, "pairs": 0}
    write_metrics(results, metrics)
    write_reliability(results / "reliability.csv", [], [])
    stage.write_history(results)
    stage.final(metrics)


def _write(stage: Stage, made: Made) -> None:
    """The model's folder, complete and sealed."""
    if len(members_of(made.model)) > 1:
        made.model.classifier.config.ensemble_k = stage.params.reward.ensemble_k
    if stage.params.reward.model is None:
        set_padding(made.tokenizer, members_of(made.model))
    path = f"models/rounds/{stage.round_key}/reward"
    changed = made.adapters[0].changed if made.adapters else ()
    target = write_model(stage, made.model.classifier, made.tokenizer, path, changed)
    save_members(made.model, target, stage.params.run.stored_precision, changed)
    for number, adapter in enumerate(made.adapters):
        adapter.save(member_folder(target, number) / ADAPTER)
    seal_model(stage, target)


def _preferences(stage: Stage) -> tuple[list[Preference], list[Preference]]:
    """What the model trains on, all so far or the newest alone, and everything held out."""
    key = stage.round_key
    folder = Path(f"data/rounds/{key}/preferences")
    train, heldout = (
        [row.preference for row in load_preferences(folder / f"{split}.jsonl")]
        for split in ("train", "heldout")
    )
    if stage.params.reward.preferences == "newest":
        train = [row for row in train if row.round == key]
    return train, heldout


def _fresh(stage: Stage, start: Path, device: torch.device) -> list[RewardModel]:
    """The members to train: those of the starting model; any others start from SFT."""
    seeds = seeds_of(stage)
    heads = [
        reward.member_seeds(seeds, number).torch("reward", "head")
        for number in range(stage.params.reward.ensemble)
    ]
    return starting_members(start, Path("models/sft"), heads, device)


def _train(
    stage: Stage,
    members: Sequence[RewardModel],
    encoder: Encoder,
    rows: Sequence[Preference],
    compute: Compute,
) -> tuple[list[RewardModel], dict[str, Any]]:
    params = stage.params.reward
    pairs = [
        reward.EncodedPair(
            encoder.encode(row.prompt, row.chosen, finished=row.chosen_finished),
            encoder.encode(row.prompt, row.rejected, finished=row.rejected_finished),
            row.margin if params.margins and not row.is_tie else 0.0,
            row.weight * reward.source_weight(row.source, params.source_weights),
            row.label,
        )
        for row in rows
    ]
    kept = [pair for pair in pairs if len(pair) <= params.max_tokens and pair.weight > 0]
    if not kept:
        newest = {"newest": " of this round (reward.preferences: newest)"}
        raise StageEnd(
            "bad_input",
            f"none of {len(rows)} preferences{newest.get(params.preferences, '')} has at most "
            f"{params.max_tokens} tokens (reward.max_tokens) and a weight above 0",
        )
    limit = f"a side of more than {params.max_tokens} tokens (reward.max_tokens), or weight 0"
    say_left_out(len(pairs) - len(kept), len(pairs), "preferences", limit)
    check_positions(members[0].classifier, {"reward.max_tokens": params.max_tokens})
    if params.packing:
        sequences = [pair.chosen for pair in kept[:4]]
        for member in members:
            check_packing(member.classifier.base_model, sequences, setting="reward.packing")
    if params.lora is not None:
        for number, member in enumerate(members):
            draws = reward.member_seeds(seeds_of(stage), number).torch("reward", "lora")
            add_adapter(member.classifier, params.lora, draws, head=member.head)
            cast_frozen(member, compute)
    divided = [Held(member, divided=stage.params.run.sharded) for member in members]
    if params.recompute_layers:
        recompute_layers(*members)
    training = reward.EnsembleTraining(
        [
            Training(m, Optimiser(params.optimiser, m.named_parameters()), held)
            for m, held in zip(members, divided, strict=True)
        ]
    )
    checkpoints = Checkpoints(stage, training)
    total = len(members) * reward.total_steps(len(kept), params)
    progress = Progress(stage.name, total, "steps", done=training.step)
    steps = reward.train_members(
        training, kept, params, pad_id=encoder.pad_id, compute=compute, seeds=seeds_of(stage)
    )
    for number, step in checkpoints.after_each(steps):
        prefix = f"member_{number + 1}/" if number else ""
        stage.log(training.step, {f"{prefix}{name}": value for name, value in asdict(step).items()})
        progress.step(loss=step.loss, accuracy=step.accuracy)
    progress.close()
    counts = {"pairs": len(kept), "too_long": len(pairs) - len(kept)}
    return [held.whole() for held in divided], counts


if __name__ == "__main__":
    sys.exit(run_stage("reward", run, inputs=INPUTS, per_round=True, errors=ERRORS))
