"""Stage `reward`: the reward model, trained on the labels so far, measured on the newest.

Before PPO spends a round on it, probes ask whether it knows what any reward model has to know, and
the fresh labels whether it still orders what the newest policy writes (docs/reward-guards.md).
"""

import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from preferences.loading import load_comparisons, load_preferences
from preferences.records import Comparison, Preference
from rlhf import reward
from rlhf.compute import Compute
from rlhf.ensembles import (
    join,
    load_members,
    load_scorer,
    member_folder,
    save_members,
    starting_members,
)
from rlhf.lora import ADAPTER, Adapter, add_adapter, take_adapter
from rlhf.model_folders import is_reward_model
from rlhf.models import load_tokenizer
from rlhf.named_seeds import named_random
from rlhf.optimisers import Optimiser, Training
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from tasks.running.metrics_file import write_metrics
from tasks.running.models import ERRORS, seal_model, seeds_of, start_compute, write_model
from tasks.running.outcome import StageEnd, Status
from tasks.running.progress import Progress, say_left_out
from tasks.running.resuming import Checkpoints
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import model_hash
from tasks.scoring.over_optimisation import Signals, alarms, read_signals
from tasks.scoring.reward_accuracy import gold_accuracy, label_gaps, measure, write_reliability
from tasks.scoring.reward_probes import (
    LEAST,
    Probe,
    failures,
    probe,
    probe_table,
    write_probes,
)
from tasks.tracking.spool import Output
from tasks.workspace.work_folder import BLOCKED, GUARDS, STOPPED

INPUTS = (
    "models/sft",
    "{reward_model}",
    "data/rounds/{key}/comparisons.jsonl",
    "data/rounds/{key}/preferences",
)

log = logging.getLogger(__name__)


def run(stage: Stage) -> None:
    """Train on the preferences so far, or copy the model that the round starts from."""
    params, key = stage.params.reward, stage.round_key
    for name in (BLOCKED, STOPPED):
        shutil.rmtree(stage.work / name, ignore_errors=True)
    compute = start_compute(stage.params.run)
    start = Path(stage.round.reward_model)
    tokenizer = load_tokenizer(start)
    encoder = Encoder(tokenizer)
    retrain = params.retrain or not is_reward_model(start)
    members = load_members(start, compute.device) if not retrain else _fresh(stage, start, compute)
    model = join(members, params.ensemble_k)
    train, heldout = _preferences(stage)
    fresh = [row for row in heldout if row.round == key]
    before = None
    if is_reward_model(start):
        before = gold_accuracy(load_scorer(start, compute.device), encoder, fresh, compute)
    metrics: dict[str, Any] = {"round": key, "pairs": len(train), "accuracy_before": before}
    adapters: list[Adapter] = []
    if retrain:
        metrics |= _train(stage, members, encoder, train, compute)
        if params.lora is not None:
            adapters = [take_adapter(member.classifier) for member in members]
        comparisons = load_comparisons(Path(f"data/rounds/{key}/comparisons.jsonl"))
        for member in members:
            _normalise(member, encoder, comparisons, compute)
    numbers, gaps = measure(model, encoder, fresh, heldout, compute)
    metrics |= numbers
    unseen = fresh if retrain else [row for row in [*train, *fresh] if row.round == key]
    # Where the round's own are too few: imported pairs and those of earlier rounds, unseen as well.
    asked = heldout if retrain and len(fresh) < LEAST else fresh
    guards = _ask(stage, model, encoder, asked, unseen, compute)
    _end_where_they_say_so(stage, guards)
    if len(members) > 1:
        model.classifier.config.ensemble_k = params.ensemble_k
    target = write_model(stage, model.classifier, tokenizer, f"models/rounds/{key}/reward")
    save_members(model, target)
    for number, adapter in enumerate(adapters):
        adapter.save(member_folder(target, number) / ADAPTER)
    seal_model(stage, target)
    results = stage.staging.directory(f"results/reward/{key}")
    write_metrics(results, metrics)
    write_reliability(results / "reliability.csv", gaps)
    guards.write(results)
    stage.write_history(results)
    stage.final(metrics)
    stage.keep(
        Output("reward_model", Path(f"models/rounds/{key}/reward")),
        Output("artifact", Path(f"results/reward/{key}")),
    )


@dataclass(frozen=True, slots=True)
class Guards:
    """What was asked of the model before PPO uses it."""

    probes: Sequence[Probe]
    signals: Signals

    def write(self, folder: Path, said: str = "") -> None:
        """Write `probes.csv`, `signals.json` and both as a page, `guards.md`."""
        write_probes(folder / "probes.csv", self.probes)
        write_metrics(folder, self.signals.as_dict(), name="signals.json")
        page = [said, probe_table(self.probes), self.signals.table()]
        text = "\n".join(
            ["# The reward model before PPO\n", *(f"{part}\n" for part in page if part)]
        )
        (folder / GUARDS).write_text(text, encoding="utf-8")


def _ask(
    stage: Stage,
    model: RewardModel,
    encoder: Encoder,
    asked: Sequence[Preference],
    unseen: Sequence[Preference],
    compute: Compute,
) -> Guards:
    """Probe with the pairs `asked`; `unseen` are the round's that the model was not trained on."""
    key = stage.round_key
    probes = probe(
        model,
        encoder,
        asked,
        max_tokens=stage.params.reward.max_tokens,
        draws=named_random(stage.params.run.seed, "probes", str(key)),
        compute=compute,
    )
    gaps = label_gaps(model, encoder, [row for row in unseen if not row.is_tie], compute)
    comparisons = load_comparisons(Path(f"data/rounds/{key}/comparisons.jsonl"))
    folder = Path(f"data/rounds/{key}/preferences")
    labelled = [
        row.preference
        for split in ("train", "heldout")
        for row in load_preferences(folder / f"{split}.jsonl")
        if row.preference.round == key
    ]
    return Guards(probes, read_signals(gaps, labelled, comparisons, model_hash(Path("models/sft"))))


def _end_where_they_say_so(stage: Stage, guards: Guards) -> None:
    """Say what the probes and the fresh labels found.

    Raises:
        StageEnd: params.yaml has it end a round.
    """
    params = stage.params.reward
    stage.final({"guards": guards.signals.as_dict()})
    warnings = alarms(
        guards.signals,
        min_accuracy=params.min_fresh_accuracy,
        of_sft=stage.round.policy == "models/sft",
    )
    if all(found.demand == "none" for found in guards.probes):
        log.warning("%s: too few held-out pairs for the probes to decide anything", stage.name)
    checks: tuple[tuple[Status, str, bool, list[str]], ...] = (
        ("blocked", BLOCKED, params.probes == "block", failures(guards.probes)),
        ("stopped", STOPPED, params.over_optimisation == "stop", warnings),
    )
    for status, name, ends, found in checks:
        said = "; ".join(found)
        if said and not ends:
            log.warning("%s: %s", stage.name, said)
        elif said:
            folder = Path(".work") / stage.name / name
            folder.mkdir(parents=True, exist_ok=True)
            guards.write(folder, said)
            stage.keep(Output("artifact", folder))
            raise StageEnd(status, f"{said}. The policy stays {stage.round.policy}; see {folder}")


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


def _fresh(stage: Stage, start: Path, compute: Compute) -> list[RewardModel]:
    """The members to train: those of the starting model; any others start from SFT."""
    seeds = seeds_of(stage)
    heads = [
        reward.member_seeds(seeds, number).torch("reward", "head")
        for number in range(stage.params.reward.ensemble)
    ]
    return starting_members(start, Path("models/sft"), heads, compute.device)


def _train(
    stage: Stage,
    members: Sequence[RewardModel],
    encoder: Encoder,
    rows: Sequence[Preference],
    compute: Compute,
) -> dict[str, Any]:
    params = stage.params.reward
    pairs = [
        reward.EncodedPair(
            encoder.encode(row.prompt, row.chosen, finished=row.chosen_finished),
            encoder.encode(row.prompt, row.rejected, finished=row.rejected_finished),
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
    limit = f"a side of more than {params.max_tokens} tokens (reward.max_tokens), or weight 0"
    say_left_out(len(pairs) - len(kept), len(pairs), "preferences", limit)
    if params.lora is not None:
        for number, member in enumerate(members):
            draws = reward.member_seeds(seeds_of(stage), number).torch("reward", "lora")
            add_adapter(member.classifier, params.lora, draws, head=member.head)
    training = reward.EnsembleTraining(
        [Training(m, Optimiser(params.optimiser, m.named_parameters())) for m in members]
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
    return {"too_long": len(pairs) - len(kept)}


def _normalise(
    model: RewardModel,
    encoder: Encoder,
    comparisons: Sequence[Comparison],
    compute: Compute,
) -> None:
    """Fit the normaliser on SFT's own responses among the round's pairs."""
    sft = model_hash(Path("models/sft"))
    rows = [
        encoder.encode(row.prompt, response, finished=finished)
        for row in comparisons
        for response, finished, policy in (
            (row.response_a, row.finished_a, row.policy_a),
            (row.response_b, row.finished_b, row.policy_b),
        )
        if policy == sft
    ]
    if len(rows) < 2:
        raise StageEnd(
            "bad_input",
            f"{len(rows)} of the round's responses are by SFT, but the score normaliser "
            "needs at least 2: raise sample.against_sft",
        )
    try:
        reward.fit_normaliser(model, rows, pad_id=encoder.pad_id, compute=compute)
    except ValueError as error:
        raise StageEnd("stopped", f"{error}; look at the labels and reward.optimiser") from None


if __name__ == "__main__":
    sys.exit(run_stage("reward", run, inputs=INPUTS, per_round=True, errors=ERRORS))
