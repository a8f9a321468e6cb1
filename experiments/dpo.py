"""DPO on the preferences of finished runs, measured as their policies are; writes docs/results.

    python -m experiments.dpo RUN [RUN ...]      # folders in which `make repro` has finished

Question: does direct preference optimisation (Rafailov et al. 2023), which needs neither a reward
model nor samples, reach with the same labels what the rounds of PPO reach? It starts from
`models/sft` and trains on all preferences of the final round. Those of later rounds are of
responses that PPO's policies wrote: DPO profits from rounds that it could not have made itself.
`experiments/dpo.yaml` has the settings that are tried. On the first run each of them is tried, and
the one that orders most held-out pairs as labelled is taken for all runs: gold chooses nothing.

Writes `docs/results/dpo.json` and, from it, `docs/results/dpo.md`; nothing in the runs.
"""
# ruff: noqa: I001 (tasks comes first: it chooses the bits before torch is imported)

import tasks  # noqa: F401

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import transformers
from torch import device
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from preferences.loading import load_preferences
from rlhf.chat import decode_response, encode_prompt, encode_response
from rlhf.compute import Compute, make_deterministic
from rlhf.dpo import PromptedPair, all_logprobs, train
from rlhf.dpo_loss import dpo_loss
from rlhf.evaluation import distinct_ngrams, kl_to_reference
from rlhf.intervals import mean_interval, win_rate
from rlhf.models import load_policy, load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.params.dpo import DPOParams
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.responses import respond
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds, load_special_ids
from tasks.params.loading import load_params, read_yaml
from tasks.scoring.gold import gold_scores

REPOSITORY = Path(__file__).resolve().parents[1]
COMPUTE = Compute(device("cpu"), "float32")


@dataclass(frozen=True)
class World:
    """A finished run: what DPO takes from it, and what it is compared with."""

    root: Path
    seed: int
    evaluate: EvaluateParams
    tokenizer: PreTrainedTokenizerBase
    tokens: SpecialIds
    sft: PreTrainedModel
    pairs: Sequence[PromptedPair]
    heldout: Sequence[PromptedPair]
    measured: Sequence[Mapping[str, Any]]
    """`results/evaluate/<final>/samples.jsonl`: SFT and PPO's last policy, prompt by prompt."""
    ppo: Mapping[str, Any]


def start(root: Path) -> World:
    """Read what a run has left."""
    params = load_params(root / "params.yaml")
    tokenizer = load_tokenizer(root / "models/sft")
    preferences = root / "data/rounds" / params.final / "preferences"
    results = root / "results/evaluate" / params.final
    lines = (results / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return World(
        root=root,
        seed=params.run.seed,
        evaluate=params.evaluate,
        tokenizer=tokenizer,
        tokens=load_special_ids(root / "models/sft", tokenizer),
        sft=load_policy(root / "models/sft", COMPUTE.device),
        pairs=encode_pairs(tokenizer, preferences / "train.jsonl"),
        heldout=encode_pairs(tokenizer, preferences / "heldout.jsonl"),
        measured=[json.loads(line) for line in lines],
        ppo=json.loads((results / "metrics.json").read_text(encoding="utf-8")),
    )


def encode_pairs(tokenizer: PreTrainedTokenizerBase, path: Path) -> list[PromptedPair]:
    """The preferences of a file as token ids."""
    rows = (sourced.preference for sourced in load_preferences(path))
    return [
        PromptedPair(
            encode_prompt(tokenizer, row.prompt),
            encode_response(tokenizer, row.chosen, finished=row.chosen_finished),
            encode_response(tokenizer, row.rejected, finished=row.rejected_finished),
            row.weight,
            row.label,
        )
        for row in rows
    ]


def settings(raw: Mapping[str, Any]) -> list[DPOParams]:
    """Each rate with each beta."""
    return [
        DPOParams(
            beta=beta,
            epochs=raw["epochs"],
            batch_size=raw["batch_size"],
            optimiser=OptimiserParams(lr=rate),
        )
        for beta, rate in itertools.product(raw["betas"], raw["rates"])
    ]


def trained(world: World, params: DPOParams) -> tuple[PreTrainedModel, float]:
    """The policy, and the share of the held-out pairs that it orders as labelled."""
    policy = load_policy(world.root / "models/sft", COMPUTE.device)
    training = Training(policy, Optimiser(params.optimiser, policy.named_parameters()))
    pairs = [pair for pair in world.pairs if len(pair) <= params.max_tokens and pair.weight > 0]
    pad_id = world.tokens.pad
    reference = all_logprobs(world.sft, pairs, pad_id=pad_id, compute=COMPUTE)
    seeds = Seeds(world.seed)
    steps = train(training, pairs, reference, params, pad_id=pad_id, compute=COMPUTE, seeds=seeds)
    for step in steps:
        if training.step % 25 == 0:
            say(f"  step {training.step}: loss {step.loss:.3f}, accuracy {step.accuracy:.2f}")
    ours, theirs = (
        all_logprobs(model, world.heldout, pad_id=pad_id, compute=COMPUTE)
        for model in (policy, world.sft)
    )
    return policy, dpo_loss(ours, theirs, beta=params.beta).accuracy.item()


def measure(world: World, policy: PreTrainedModel) -> dict[str, Any]:
    """As `tasks/evaluate.py` does, with the same draws; PPO's and SFT's numbers are the run's."""
    prompts = [row["prompt"] for row in world.measured]
    encoded = [encode_prompt(world.tokenizer, prompt) for prompt in prompts]
    params, tokens = world.evaluate, world.tokens
    ids = respond(
        policy,
        encoded,
        params.sampling,
        tokens,
        batch_size=params.batch_size,
        compute=COMPUTE,
        seed=Seeds(world.seed).named("evaluate", "sampling"),
    )
    kl = kl_to_reference(policy, world.sft, encoded, ids, params, tokens, compute=COMPUTE)
    texts = [decode_response(world.tokenizer, row) for row in ids]
    finished = [row[-1] in tokens.stops for row in ids]
    gold = gold_scores(prompts, texts, finished)
    assert gold is not None, "the runs of this experiment are of the embedded prompts"
    gold = [round(score, 4) for score in gold]  # As in the samples that it is compared with.
    sft, ppo = ([row[name] for row in world.measured] for name in ("gold_sft", "gold"))
    return {
        "gold": mean_interval(gold).as_dict(),
        "win_rate_vs_sft": win_rate(gold, sft).as_dict(),
        "kl": mean_interval(kl).as_dict(),
        "length": sum(map(len, ids)) / len(ids),
        "finished": sum(finished) / len(finished),
        "distinct_2": distinct_ngrams(texts, 2),
        "less_ppo": mean_interval([a - b for a, b in zip(gold, ppo, strict=True)]).as_dict(),
        "samples": [
            {"prompt": prompt, "dpo": text, "gold": round(score, 2)}
            for prompt, text, score in list(zip(prompts, texts, gold, strict=True))[:6]
        ],
    }


def attempt(world: World, params: DPOParams) -> dict[str, Any]:
    """One training, measured."""
    began = time.monotonic()
    say(f"seed {world.seed}, beta {params.beta:g}, rate {params.optimiser.lr:g}")
    policy, accuracy = trained(world, params)
    found = measure(world, policy)
    say(f"  held-out labels {accuracy:.3f}, gold {interval(found['gold'], 2)}")
    return {
        "seed": world.seed,
        "params": asdict(params),
        "pairs": len(world.pairs),
        "heldout_accuracy": accuracy,
        "dpo": found,
        "ppo": {name: world.ppo[name] for name in ("gold", "win_rate_vs_sft", "kl")},
        "seconds": round(time.monotonic() - began),
    }


def page(found: Mapping[str, Any]) -> str:
    """`docs/results/dpo.md`."""
    chosen = found["chosen"]
    lines = [
        "# DPO on the same preferences",
        "",
        "Written by `python -m experiments.dpo RUN ...` from finished default runs; the settings",
        "are in `experiments/dpo.yaml`, all numbers in `dpo.json`. DPO starts from SFT and trains",
        "on all preferences of the run's final round, of which those of later rounds are of",
        "responses that PPO's policies wrote. 512 held-out prompts, the same draws as PPO's;",
        "intervals are of 95 % over the prompts, differences are paired by prompt.",
        "",
        f"Chosen by the held-out labels of the first run: beta {chosen['beta']:g}, rate "
        f"{chosen['lr']:g}.",
        "",
        "| seed | beta | rate | held-out labels | gold | win rate vs SFT | KL | PPO's gold | "
        "PPO's KL | DPO - PPO, gold |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["attempts"]:
        params, dpo, ppo = row["params"], row["dpo"], row["ppo"]
        cells = [
            str(row["seed"]),
            f"{params['beta']:g}",
            f"{params['optimiser']['lr']:g}",
            f"{row['heldout_accuracy']:.3f}",
            interval(dpo["gold"], 2),
            interval(dpo["win_rate_vs_sft"], 3),
            interval(dpo["kl"], 2),
            interval(ppo["gold"], 2),
            f"{ppo['kl']['mean']:.2f}",
            interval(dpo["less_ppo"], 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    seconds = sum(row["seconds"] for row in found["attempts"])
    lines += ["", f"{len(found['attempts'])} trainings, {seconds / 60:.0f} minutes on one thread."]
    return "\n".join(lines) + "\n"


def interval(estimate: Mapping[str, float], digits: int) -> str:
    """`8.70 [8.55, 8.85]`."""
    mean, low, high = (f"{estimate[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.dpo", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--params", type=Path, default=REPOSITORY / "experiments/dpo.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs/results")
    options = parser.parse_args(arguments)
    make_deterministic(1)
    transformers.utils.logging.disable_progress_bar()
    worlds = [start(root) for root in options.runs]
    attempts = [attempt(worlds[0], params) for params in settings(read_yaml(options.params))]
    best = max(attempts, key=lambda found: found["heldout_accuracy"])["params"]
    chosen = DPOParams(**{**best, "optimiser": OptimiserParams(**best["optimiser"])})
    attempts += [attempt(world, chosen) for world in worlds[1:]]
    found = {"chosen": {"beta": chosen.beta, "lr": chosen.optimiser.lr}, "attempts": attempts}
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
    (options.out / "dpo.json").write_text(text, encoding="utf-8")
    (options.out / "dpo.md").write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
