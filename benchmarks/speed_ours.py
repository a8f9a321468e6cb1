"""Our side of the speed benchmark, run by benchmarks/speed.py: prints one JSON object.

    python -m benchmarks.speed_ours FOLDER SIZE DEVICE THREADS PRECISION BITS [--count]
        [--work NAME]

`--count` also counts the floating-point operations of an update of PPO, in one more iteration;
`--work` does one of the works, in this process.
The environment has the pins of BITS already (benchmarks/speed_environment.py).
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.flop_counter import FlopCounterMode, mm_flop

from benchmarks import speed_world as world
from benchmarks.speed_processes import each
from rlhf import ppo, reward, rollouts, sft
from rlhf.actor_critic import build_actor_critic
from rlhf.batches import PPOBatch
from rlhf.bits import choose
from rlhf.compute import (
    Compute,
    Precision,
    keep_all_freed_memory,
    keep_freed_memory,
    make_deterministic,
)
from rlhf.cuda_graphs import SWITCH
from rlhf.draws import draw_table
from rlhf.frozen import freeze, load_frozen_policy
from rlhf.models import load_policy
from rlhf.optimisers import Optimiser, Training
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.reward import RewardParams
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams
from rlhf.ppo_update import PPOTraining
from rlhf.reward_models import load_reward_model
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds

TOKENS = SpecialIds(eos=world.END, pad=world.PAD)
FORMULAS = {torch.ops.aten.addmm: lambda _, one, other, *__, **___: mm_flop(one, other)}
"""torch's own for this product does not take the `out_dtype` of `rlhf.lower_gradient_sums`."""
OPTIMISER = OptimiserParams(lr=world.RATE, schedule="constant", warmup_steps=0)


def main(arguments: list[str]) -> None:
    """Run every work in a process of its own; seconds by phase, or of each step."""
    folder, (size, device, threads) = Path(arguments[0]), arguments[1:4]
    precision: Precision = "bfloat16" if arguments[4] == "bfloat16" else "float32"
    choose("portable" if arguments[5] == "portable" else "native")
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    counting = "--count" in arguments

    def run(work: str) -> dict[str, Any]:
        make_deterministic(int(threads))
        compute, clock = Compute(torch.device(device), precision), world.Clock(device)
        if device == "cpu":
            keep_all_freed_memory()
        else:
            keep_freed_memory()
        found: dict[str, Any]
        if work.startswith("ppo"):
            iterations = ppo_iterations(folder, rows, size, compute, work)
            for _ in range(world.warming(device, "ours", size)):
                next(iterations)
            found = {"phases": phases(iterations, clock)}
        else:
            steps = (sft_steps if work == "sft" else reward_steps)(folder, rows, compute)
            found = {"steps": timed(steps, clock)}
        found["peak"] = world.peak_bytes(device)
        if counting and work.startswith("ppo"):
            found["flops"] = count(iterations)
        if work.startswith("ppo"):
            found |= read_by_rollout(folder, compute, rows[: world.responses_of(size)])
            found["bandwidth"] = world.bandwidth(device)
        ceiling = world.ceiling(size, device, precision, rows)
        return found | {"ceiling": ceiling, "kernels": world.kernels()}

    works = {work: partial(run, work) for work in world.works_of(size, rows)}
    json.dump(each(works, device, arguments), sys.stdout)


def timed(steps: Iterator[object], clock: world.Clock) -> list[float]:
    """Seconds of each step but the first."""
    next(steps)
    found, began = [], clock.now()
    for _ in steps:
        found.append(clock.now() - began)
        began = clock.now()
    return found


def phases(iterations: Iterator[ppo.Iteration], clock: world.Clock) -> dict[str, float]:
    """Seconds of sampling, scoring and the update, and the tokens of the responses."""
    spent = {"rollout": 0.0, "collected": 0.0, "update": 0.0}

    def watched(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = clock.now()
            result = function(*args, **kwargs)
            spent[name] += clock.now() - began
            return result

        return call

    rollouts.sample_responses = watched(rollouts.sample_responses, "rollout")
    ppo.collect_rollout = watched(ppo.collect_rollout, "collected")
    ppo.update = watched(ppo.update, "update")
    began = clock.now()
    iteration = next(iterations)
    return {
        "total": clock.now() - began,
        "rollout": spent["rollout"],
        "scoring": spent["collected"] - spent["rollout"],
        "update": spent["update"],
        "tokens": float(iteration.metrics.tokens),
    }


def read_by_rollout(folder: Path, compute: Compute, rows: list[Any]) -> dict[str, int]:
    """How many steps a rollout has, and what they must read, in bytes.

    All the policy's weights in each step, where a tied head counts once, and the keys and values of
    each response's tokens so far: these in all steps together.
    """
    policy = load_frozen_policy(folder / "policy", compute)
    found = sum(weight.nbytes for weight in policy.parameters())
    if compute.device.type == "cuda" and compute.precision == "bfloat16":
        head = policy.get_output_embeddings().weight
        found -= head.nbytes - head.numel() * torch.bfloat16.itemsize  # rlhf.head_products
    config = policy.config
    position = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    cached = position * getattr(torch, compute.precision).itemsize * positions_read(rows)
    return {"weights": found, "steps": rows[0]["most"], "cached": cached}


def positions_read(rows: list[Any]) -> int:
    """How often a rollout reads a token's keys and values in each layer: a step those before it."""
    return sum(
        len(row["prompt"]) + step for row in rows for step in range(1, row["length"] or row["most"])
    )


def count(iterations: Iterator[ppo.Iteration]) -> int:
    """Floating-point operations of the products of one update, as torch counts them.

    One pass is counted, as often as there are passes: they differ in nothing but padding. torch
    sees none of those that a GPU repeats from a recording, so here there are none, neither in the
    scoring, which has to round as the first pass does. Sampling keeps its own: a GPU that is asked
    for half a million kernels one by one takes most of a minute for long responses.
    """
    counter, update = FlopCounterMode(display=False, custom_mapping=FORMULAS), ppo.update
    sample, recording = rollouts.sample_responses, os.environ.get(SWITCH, "1")

    def sampled(*args: Any, **kwargs: Any) -> Any:
        with patch.dict(os.environ, {SWITCH: recording}):
            return sample(*args, **kwargs)

    def counted(
        training: PPOTraining, batch: PPOBatch, params: PPOParams, *args: Any, **kwargs: Any
    ) -> Any:
        with counter:
            return update(training, batch, replace(params, epochs=1), *args, **kwargs)

    with (
        patch.dict(os.environ, {SWITCH: "0"}),
        patch.object(rollouts, "sample_responses", sampled),
        patch.object(ppo, "update", counted),
    ):
        next(iterations)
    return world.PASSES * int(counter.get_total_flops())


def ppo_iterations(
    folder: Path, rows: list[Any], size: str, compute: Compute, work: str
) -> Iterator[ppo.Iteration]:
    """Iterations of PPO, each of the same work."""
    shared, device = work.startswith("ppo-shared"), compute.device.type
    settings = PPOParams(
        iterations=1000,
        rollout_size=world.responses_of(size),
        epochs=world.PASSES,
        minibatches=world.MINIBATCHES,
        micro_batch_size=world.micro_batch_of(size, device, compute.precision, rows),
        packing=work not in world.PADDED_WORKS,
        sampling=SamplingParams(temperature=1.0, max_new_tokens=rows[0]["most"]),
        optimiser=OPTIMISER,
        value_optimiser=OPTIMISER,
        value_model="shared" if shared else "separate",
        value_init="zero" if shared else "reward",
        kl_alarm=1e9,
        flat_rollouts=None,
    )
    generator = torch.Generator().manual_seed(0)
    scorer = load_reward_model(folder / "reward", compute.device, generator)
    scorer.set_normaliser(0.0, 1.0)
    actor = build_actor_critic(
        load_policy(folder / "policy", compute.device),
        reward_model=None if shared else scorer,
        separate=not shared,
    ).to(compute.device)
    reference = load_frozen_policy(folder / "policy", compute)
    models = PPOModels(actor, reference, freeze(scorer, compute))
    training = PPOTraining(models, settings)
    chosen = rows[: world.responses_of(size)]
    ppo.draw_table = with_lengths(world.lengths_by_prompt(chosen))
    prompts = [row["prompt"] for row in chosen]
    return ppo.train(training, prompts, settings, TOKENS, compute=compute, seeds=Seeds(0))


def with_lengths(lengths: dict[tuple[int, ...], int | None]) -> Callable[..., torch.Tensor]:
    """The table of draws, in a ragged world with each response's length forced."""
    if set(lengths.values()) == {None}:
        return draw_table

    def forced(seed: int, prompts: Sequence[Sequence[int]], steps: int) -> torch.Tensor:
        asked = [lengths[tuple(prompt)] for prompt in prompts]
        return world.force_lengths(draw_table(seed, prompts, steps), asked)

    return forced


def sft_steps(folder: Path, rows: list[Any], compute: Compute) -> Iterator[object]:
    """Steps of supervised fine-tuning."""
    settings = SFTParams(epochs=1, batch_size=world.BATCH, optimiser=OPTIMISER)
    model = load_policy(folder / "policy", compute.device)
    examples = [sft.Example(row["prompt"], row["one"]) for row in rows[: chosen()]]
    training = Training(model, Optimiser(OPTIMISER, model.named_parameters()))
    return sft.train(
        training, examples, settings, pad_id=world.PAD, compute=compute, seeds=Seeds(0)
    )


def reward_steps(folder: Path, rows: list[Any], compute: Compute) -> Iterator[object]:
    """Steps of reward-model training."""
    settings = RewardParams(epochs=1, batch_size=world.BATCH, optimiser=OPTIMISER)
    generator = torch.Generator().manual_seed(0)
    model = load_reward_model(folder / "reward", compute.device, generator)
    pairs = [
        reward.EncodedPair(row["prompt"] + row["one"], row["prompt"] + row["other"], 0.0, 1.0)
        for row in rows[: chosen()]
    ]
    training = Training(model, Optimiser(OPTIMISER, model.named_parameters()))
    return reward.train(
        training, pairs, settings, pad_id=world.PAD, compute=compute, seeds=Seeds(0)
    )


def chosen() -> int:
    """Rows of data that SFT and reward training take."""
    return world.STEPS * world.BATCH


if __name__ == "__main__":
    main(sys.argv[1:])
