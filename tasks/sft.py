"""Stage `sft`: supervised fine-tuning of the base model on demonstrations.

Without demonstrations (`prepare.files.demonstrations: null`) it trains nothing: the base model is
what the later stages start from and are compared with.
"""

import logging
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from preferences.demonstrations import prompts_of, read_demonstrations
from preferences.splitting import split_of
from rlhf import sft
from rlhf.compute import HOST, Compute
from rlhf.frozen import cast_frozen, restore_frozen
from rlhf.lora import ADAPTER, add_adapter, take_adapter
from rlhf.models import load_policy, load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.packing import check_packing
from rlhf.positions import check_positions
from rlhf.recomputed_layers import recompute_layers
from rlhf.seeding import Seeds
from rlhf.sharding import Held
from rlhf.special_ids import special_ids
from tasks.running.metrics_file import write_metrics
from tasks.running.models import (
    ERRORS,
    seal_model,
    seeds_of,
    start_compute,
    write_model,
)
from tasks.running.outcome import StageEnd
from tasks.running.progress import Progress, say_left_out
from tasks.running.resuming import Checkpoints
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.tracking.spool import Output

INPUTS = ("models/base", "data/prepared")
DEMONSTRATIONS = Path("data/prepared/demonstrations.jsonl")

log = logging.getLogger(__name__)


def run(stage: Stage) -> None:
    """Train on the demonstrations, or take the base model where there are none."""
    (_train if DEMONSTRATIONS.exists() else _take_base)(stage)


def _train(stage: Stage) -> None:
    """Train on the responses of the demonstrations, in conversations on all of them."""
    params = stage.params.sft
    compute, seeds = start_compute(stage.params.run, training=True), seeds_of(stage)
    base = Path("models/base")
    tokenizer, model = load_tokenizer(base), load_policy(base, compute.device)
    check_positions(model, {"sft.max_tokens": stage.params.sft.max_tokens})
    data = _data(stage, tokenizer)
    examples = data.train
    pad = special_ids(tokenizer).pad
    before = None
    if data.heldout:
        before = sft.mean_loss(model, data.heldout, params, pad_id=pad, compute=compute)
    if params.packing:
        sequences = [example.ids for example in examples[:4]]
        check_packing(model.base_model, sequences, setting="sft.packing")
    training = _training(stage, model, compute, seeds)
    checkpoints = Checkpoints(stage, training)
    total = sft.total_steps(len(examples), params)
    progress = Progress(stage.name, total, "steps", done=training.step)
    steps = sft.train(training, examples, params, pad_id=pad, compute=compute, seeds=seeds)
    for step in checkpoints.after_each(steps):
        stage.log(training.step, {"loss": step.loss, "grad_norm": step.grad_norm})
        progress.step(loss=step.loss)
    progress.close()
    metrics: dict[str, Any] = {
        "loss": statistics.fmean(row["loss"] for row in stage.history[-50:]),
        "demonstrations": len(examples),
        "too_long": data.too_long,
    }
    model, adapter = training.held.whole(), None
    if params.lora is not None:
        restore_frozen(model, lambda: load_policy(base, HOST))
        adapter = take_adapter(model)
    if data.heldout:
        after = sft.mean_loss(model, data.heldout, params, pad_id=pad, compute=compute)
        metrics["heldout"] = {"demonstrations": len(data.heldout), "base": before, "sft": after}
    if data.heldout_too_long:
        metrics["heldout_too_long"] = data.heldout_too_long
    changed = adapter.changed if adapter is not None else ()
    target = write_model(stage, model, tokenizer, "models/sft", changed)
    if adapter is not None:
        adapter.save(target / ADAPTER)
    _publish(stage, target, metrics)


def _take_base(stage: Stage) -> None:
    """The base model, as it is, under the name that the later stages know."""
    log.info("%s: no demonstrations, so models/sft is the base model as it is", stage.name)
    base, compute = Path("models/base"), start_compute(stage.params.run)
    tokenizer, model = load_tokenizer(base), load_policy(base, compute.device)
    target = write_model(stage, model, tokenizer, "models/sft")
    _publish(stage, target, {"demonstrations": 0})


def _publish(stage: Stage, target: Path, metrics: Mapping[str, Any]) -> None:
    seal_model(stage, target)
    results = stage.staging.directory("results/sft")
    write_metrics(results, metrics)
    stage.write_history(results)
    stage.final(metrics)
    stage.keep(Output("policy", Path("models/sft")), Output("artifact", Path("results/sft")))


def _training(stage: Stage, model: PreTrainedModel, compute: Compute, seeds: Seeds) -> Training:
    """The model with what trains it: all of its weights, or an adapter."""
    params = stage.params.sft
    if params.lora is not None:
        add_adapter(model, params.lora, seeds.torch("sft", "lora"))
        cast_frozen(model, compute)
    held = Held(model, divided=stage.params.run.sharded)
    if params.recompute_layers:
        recompute_layers(model)
    return Training(model, Optimiser(params.optimiser, model.named_parameters()), held)


class Data(NamedTuple):
    """Tokenised demonstrations."""

    train: list[sft.Example]
    heldout: list[sft.Example]
    """Measured only."""
    too_long: int
    """How many were left out of `train`."""
    heldout_too_long: int


def _data(stage: Stage, tokenizer: PreTrainedTokenizerBase) -> Data:
    """Demonstrations to train on and to measure; those of one prompt are on one side."""
    params = stage.params.sft
    sides: dict[str, list[sft.Demonstration]] = {"train": [], "heldout": []}
    for row in read_demonstrations(DEMONSTRATIONS):
        side = "train"
        if params.heldout_fraction:
            prompt = next(iter(prompts_of(row)))
            side = split_of(prompt, heldout_fraction=params.heldout_fraction, salt="demonstrations")
        sides[side].append(
            row["messages"] if "messages" in row else (row["prompt"], row["response"])
        )
    train, too_long = sft.encode_examples(tokenizer, sides["train"], params.max_tokens)
    heldout, heldout_too_long = sft.encode_examples(tokenizer, sides["heldout"], params.max_tokens)
    if not sides["train"]:
        words = f"all {len(sides['heldout'])} demonstrations are held out (sft.heldout_fraction)"
        raise StageEnd("bad_input", words)
    if not train:
        raise StageEnd(
            "bad_input",
            f"none of {len(sides['train'])} demonstrations has at most {params.max_tokens} "
            "tokens (sft.max_tokens)",
        )
    limit = f"more than {params.max_tokens} tokens (sft.max_tokens)"
    say_left_out(too_long, len(sides["train"]), "demonstrations", limit)
    held_out = "demonstrations that are held out"
    say_left_out(heldout_too_long, len(sides["heldout"]), held_out, limit)
    return Data(train, heldout, too_long, heldout_too_long)


if __name__ == "__main__":
    sys.exit(run_stage("sft", run, inputs=INPUTS, errors=ERRORS))
