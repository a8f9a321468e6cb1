"""Stage `sft`: supervised fine-tuning of the base model on demonstrations."""

import statistics
import sys
from pathlib import Path

from preferences.demonstrations import read_demonstrations
from rlhf import sft
from rlhf.frozen import cast_frozen, restore_frozen
from rlhf.lora import ADAPTER, add_adapter, take_adapter
from rlhf.models import load_policy, load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.packing import PackingError, check_packing
from rlhf.recomputed_layers import recompute_layers
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


def run(stage: Stage) -> None:
    """Train on the responses of the demonstrations, in conversations on all of them."""
    params = stage.params.sft
    compute, seeds = start_compute(stage.params.run), seeds_of(stage)
    base = Path("models/base")
    tokenizer, model = load_tokenizer(base), load_policy(base, compute.device)
    rows = read_demonstrations(Path("data/prepared/demonstrations.jsonl"))
    demonstrations = [
        row["messages"] if "messages" in row else (row["prompt"], row["response"]) for row in rows
    ]
    examples, too_long = sft.encode_examples(tokenizer, demonstrations, params.max_tokens)
    if not examples:
        raise StageEnd(
            "bad_input",
            f"none of {len(rows)} demonstrations has at most {params.max_tokens} "
            "tokens (sft.max_tokens)",
        )
    limit = f"more than {params.max_tokens} tokens (sft.max_tokens)"
    say_left_out(too_long, len(rows), "demonstrations", limit)
    if params.packing:
        check_packing(model.base_model, [example.ids for example in examples[:4]])
    if params.lora is not None:
        add_adapter(model, params.lora, seeds.torch("sft", "lora"))
        cast_frozen(model, compute)
    if params.recompute_layers:
        recompute_layers(model)
    training = Training(model, Optimiser(params.optimiser, model.named_parameters()))
    checkpoints = Checkpoints(stage, training)
    total = sft.total_steps(len(examples), params)
    progress = Progress(stage.name, total, "steps", done=training.step)
    pad = special_ids(tokenizer).pad
    steps = sft.train(training, examples, params, pad_id=pad, compute=compute, seeds=seeds)
    for step in checkpoints.after_each(steps):
        stage.log(training.step, {"loss": step.loss, "grad_norm": step.grad_norm})
        progress.step(loss=step.loss)
    progress.close()
    metrics = {
        "loss": statistics.fmean(row["loss"] for row in stage.history[-50:]),
        "demonstrations": len(examples),
        "too_long": too_long,
    }
    adapter = None
    if params.lora is not None:
        restore_frozen(model, lambda: load_policy(base, compute.device))
        adapter = take_adapter(model)
    target = write_model(stage, model, tokenizer, "models/sft")
    if adapter is not None:
        adapter.save(target / ADAPTER)
    seal_model(stage, target)
    results = stage.staging.directory("results/sft")
    write_metrics(results, metrics)
    stage.write_history(results)
    stage.final(metrics)
    stage.keep(Output("policy", Path("models/sft")), Output("artifact", Path("results/sft")))


if __name__ == "__main__":
    errors = {**ERRORS, PackingError: "stopped"}
    sys.exit(run_stage("sft", run, inputs=INPUTS, errors=errors))
