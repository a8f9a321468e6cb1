"""Stage `reward`: the reward model, trained on all labels so far, measured on the newest."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preferences.loading import load_comparisons, load_preferences
from preferences.records import Comparison, Preference
from rlhf import reward
from rlhf.compute import Compute
from rlhf.models import RewardModel, is_reward_model, load_reward_model, load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.reward import Encoder
from tasks.metrics_file import write_metrics
from tasks.models import ERRORS, seal_model, seeds_of, start_compute, write_model
from tasks.outcome import StageEnd
from tasks.progress import Progress
from tasks.publishing import model_hash
from tasks.resuming import Checkpoints
from tasks.reward_measures import gold_accuracy, measure, write_reliability
from tasks.stage import Stage, run_stage
from tasks.tracking import Output

INPUTS = (
    "models/sft",
    "{reward_model}",
    "data/rounds/{key}/comparisons.jsonl",
    "data/rounds/{key}/preferences",
)


def run(stage: Stage) -> None:
    """Train on all preferences so far, or copy the model the round starts from."""
    params, key = stage.params.reward, stage.round_key
    compute, seeds = start_compute(stage.params.run), seeds_of(stage)
    start = Path(stage.round.reward_model)
    tokenizer = load_tokenizer(start)
    encoder = Encoder(tokenizer)
    model = load_reward_model(start, compute.device, seeds.torch("reward", "head"))
    folder = Path(f"data/rounds/{key}/preferences")
    train = [row.preference for row in load_preferences(folder / "train.jsonl")]
    heldout = [row.preference for row in load_preferences(folder / "heldout.jsonl")]
    fresh = [row for row in heldout if row.round == key]
    before = gold_accuracy(model, encoder, fresh, compute) if is_reward_model(start) else None
    metrics: dict[str, Any] = {"round": key, "pairs": len(train), "accuracy_before": before}
    if params.retrain or not is_reward_model(start):
        metrics |= _train(stage, model, encoder, train, compute)
        comparisons = load_comparisons(Path(f"data/rounds/{key}/comparisons.jsonl"))
        _normalise(model, encoder, comparisons, compute)
    figures, gaps = measure(model, encoder, fresh, heldout, compute)
    metrics |= figures
    target = write_model(stage, model.classifier, tokenizer, f"models/rounds/{key}/reward")
    seal_model(stage, target)
    results = stage.staging.directory(f"results/reward/{key}")
    write_metrics(results, metrics)
    write_reliability(results / "reliability.csv", gaps)
    stage.write_history(results)
    stage.final(metrics)
    stage.keep(
        Output("reward_model", Path(f"models/rounds/{key}/reward")),
        Output("artifact", Path(f"results/reward/{key}")),
    )


def _train(
    stage: Stage,
    model: RewardModel,
    encoder: Encoder,
    rows: Sequence[Preference],
    compute: Compute,
) -> dict[str, Any]:
    params = stage.params.reward
    pairs = [
        reward.EncodedPair(
            encoder.encode(row.prompt, row.chosen),
            encoder.encode(row.prompt, row.rejected),
            row.margin if params.margins else 0.0,
            row.weight * reward.source_weight(row.source, params.source_weights),
            row.label,
        )
        for row in rows
    ]
    kept = [pair for pair in pairs if len(pair) <= params.max_tokens and pair.weight > 0]
    if not kept:
        raise StageEnd(
            "bad_input",
            f"none of {len(rows)} preferences has at most {params.max_tokens} tokens "
            "(reward.max_tokens) and a weight above 0",
        )
    training = Training(model, Optimiser(params.optimiser, model.named_parameters()))
    checkpoints = Checkpoints(stage, training)
    total = reward.total_steps(len(kept), params)
    progress = Progress(stage.name, total, "steps", done=training.step)
    seeds, pad = seeds_of(stage), encoder.pad_id
    steps = reward.train(training, kept, params, pad_id=pad, compute=compute, seeds=seeds)
    for step in checkpoints.after_each(steps):
        stage.log(
            training.step,
            {
                "loss": step.loss,
                "accuracy": step.accuracy,
                "margin": step.margin,
                "grad_norm": step.grad_norm,
            },
        )
        progress.step(loss=step.loss, accuracy=step.accuracy)
    progress.close()
    return {"too_long": len(pairs) - len(kept)}


def _normalise(
    model: RewardModel,
    encoder: Encoder,
    comparisons: Sequence[Comparison],
    compute: Compute,
) -> None:
    """Fit the normaliser on SFT's own answers among the round's pairs."""
    sft = model_hash(Path("models/sft"))
    rows = [
        encoder.encode(row.prompt, answer)
        for row in comparisons
        for answer, policy in ((row.response_a, row.policy_a), (row.response_b, row.policy_b))
        if policy == sft
    ]
    if len(rows) < 2:
        raise StageEnd(
            "bad_input",
            f"{len(rows)} of the round's answers are by SFT, and the score normaliser "
            "needs at least 2: raise sample.against_sft",
        )
    try:
        reward.fit_normaliser(model, rows, pad_id=encoder.pad_id, compute=compute)
    except ValueError as error:
        raise StageEnd("stopped", f"{error}; look at the labels and reward.optimiser") from None


if __name__ == "__main__":
    sys.exit(run_stage("reward", run, inputs=INPUTS, per_round=True, errors=ERRORS))
