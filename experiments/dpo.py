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

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments.measuring import (
    COMPUTE,
    FinishedRun,
    interval,
    measure,
    options_of,
    read_all,
    read_run,
    say,
    write_results,
)
from preferences.loading import load_preferences
from rlhf.chat import encode_prompt, encode_response
from rlhf.compute import make_deterministic
from rlhf.dpo import PromptedPair, all_logprobs, train
from rlhf.dpo_loss import dpo_loss
from rlhf.models import load_policy
from rlhf.optimisers import Optimiser, Training
from rlhf.params.dpo import DPOParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.seeding import Seeds
from tasks.params.loading import read_yaml


@dataclass(frozen=True)
class World:
    """A finished run, and its preferences."""

    run: FinishedRun
    pairs: Sequence[PromptedPair]
    heldout: Sequence[PromptedPair]


def start(root: Path) -> World:
    """Read what a run has left."""
    run = read_run(root)
    preferences = root / "data/rounds" / run.final / "preferences"
    return World(
        run,
        encode_pairs(run.tokenizer, preferences / "train.jsonl"),
        encode_pairs(run.tokenizer, preferences / "heldout.jsonl"),
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
    policy = load_policy(world.run.root / "models/sft", COMPUTE.device)
    training = Training(policy, Optimiser(params.optimiser, policy.named_parameters()))
    pairs = [pair for pair in world.pairs if len(pair) <= params.max_tokens and pair.weight > 0]
    pad_id = world.run.tokens.pad
    reference = all_logprobs(world.run.sft, pairs, pad_id=pad_id, compute=COMPUTE)
    seeds = Seeds(world.run.seed)
    steps = train(training, pairs, reference, params, pad_id=pad_id, compute=COMPUTE, seeds=seeds)
    for step in steps:
        if training.step % 25 == 0:
            say(f"  step {training.step}: loss {step.loss:.3f}, accuracy {step.accuracy:.2f}")
    ours, theirs = (
        all_logprobs(model, world.heldout, pad_id=pad_id, compute=COMPUTE)
        for model in (policy, world.run.sft)
    )
    return policy, dpo_loss(ours, theirs, beta=params.beta).accuracy.item()


def attempt(world: World, params: DPOParams) -> dict[str, Any]:
    """One training, measured."""
    began = time.monotonic()
    say(f"seed {world.run.seed}, beta {params.beta:g}, rate {params.optimiser.lr:g}")
    policy, accuracy = trained(world, params)
    found = measure(world.run, policy)
    say(f"  held-out labels {accuracy:.3f}, gold {interval(found['gold'], 2)}")
    return {
        "seed": world.run.seed,
        "params": asdict(params),
        "pairs": len(world.pairs),
        "heldout_accuracy": accuracy,
        "dpo": found,
        "ppo": {name: world.run.ppo[name] for name in ("gold", "win_rate_vs_sft", "kl")},
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    options = options_of("dpo", __doc__.partition("\n")[0], arguments)
    make_deterministic(1)
    transformers.utils.logging.disable_progress_bar()
    worlds = read_all(start, options.runs)
    attempts = [attempt(worlds[0], params) for params in settings(read_yaml(options.params))]
    best = max(attempts, key=lambda found: found["heldout_accuracy"])["params"]
    chosen = DPOParams(**{**best, "optimiser": OptimiserParams(**best["optimiser"])})
    attempts += [attempt(world, chosen) for world in worlds[1:]]
    found = {"chosen": {"beta": chosen.beta, "lr": chosen.optimiser.lr}, "attempts": attempts}
    write_results(options.out, "dpo", found, page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
