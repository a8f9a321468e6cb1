"""What a real iteration of PPO takes on this machine, beside what `benchmarks.memory_plan` says.

    python -m benchmarks.memory_measured [--device cuda]

A model of 27 million parameters in float32, with a value model of its own; every response is of
full length, as in the plan. Prints one line; takes a minute of one core and 2 GB. On a GPU the
rounds that have a target (docs/models.md) come first, each in what torch has allocated there at the
most, and in what it has taken from the GPU for that. Each model is made in float32 in main memory,
one after the other: of the largest, 8 billion weights of 4 bytes. All weights are 0, which takes as
much room as any others, and no time to draw.
"""

import argparse
import copy
import gc
import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedModel

from benchmarks.memory_plan import ROUNDS, Round, plan
from rlhf.compute import Compute, make_deterministic
from rlhf.frozen import cast_frozen, freeze
from rlhf.lora import add_adapter
from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import train
from rlhf.ppo_actor import build_actor
from rlhf.ppo_update import PPOTraining
from rlhf.recomputed_layers import recompute_layers
from rlhf.reward_models import RewardModel
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds

MEASURED = Round(
    "27M, float32", 8192, 512, 1376, 6, 8, 4, separate=True, bfloat16=False,
    micro_batch=8, rows=16, prompt=64, response=128,
)  # fmt: skip
NEXT_TO_NOTHING = replace(MEASURED, vocabulary=64, hidden=64, mlp=64, layers=1, heads=2, kv_heads=2)


def taken(asked: Round, device: str = "cpu") -> int:
    """By how many bytes an iteration of PPO enlarges this process, or fills the GPU, at the most.

    One of a model of next to nothing runs before, so that what libraries set up is not counted.
    """
    torch.set_num_threads(1)
    _train(NEXT_TO_NOTHING, device)
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _train(asked, device)
        return torch.cuda.max_memory_allocated() - before
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    _train(asked, device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return most - pages * resource.getpagesize()


def _settings(asked: Round) -> PPOParams:
    """One iteration with no end token, so that every response is of full length."""
    adamw = OptimiserParams(name="adamw", lr=1e-6, warmup_steps=0)
    return PPOParams(
        iterations=1,
        rollout_size=asked.rows,
        epochs=1,
        # The moments are there from the second step on.
        minibatches=2,
        micro_batch_size=asked.micro_batch,
        sampling=SamplingParams(max_new_tokens=asked.response),
        optimiser=adamw,
        value_optimiser=adamw,
        value_model="separate" if asked.separate else "shared",
        value_init="zero",
        kl_alarm=1e9,
        flat_rollouts=None,
        recompute_layers=asked.recompute,
    )


def _train(asked: Round, device: str) -> None:
    settings = _settings(asked)
    prompts = [[2 + row % 7] * asked.prompt for row in range(asked.rows)]
    compute = Compute(torch.device(device), "bfloat16" if asked.bfloat16 else "float32")
    training = PPOTraining(_models(asked, settings, compute), settings)
    # The end token is one that no model says: its id lies beyond the vocabulary.
    tokens = SpecialIds(eos=asked.vocabulary, pad=0)
    for _ in train(training, prompts, settings, tokens, compute=compute, seeds=Seeds(0)):
        pass


def _models(asked: Round, settings: PPOParams, compute: Compute) -> PPOModels:
    """As the stage has them: what is frozen is kept in the precision that it is computed in."""
    scorer = RewardModel(_of_zeros(LlamaForSequenceClassification, asked))
    scorer = freeze(scorer, compute)
    actor = build_actor(_of_zeros(LlamaForCausalLM, asked), settings)
    reference = None if asked.lora else freeze(copy.deepcopy(actor.lm), compute)
    if asked.lora:
        add_adapter(actor.lm, LoraParams(rank=16, alpha=32), torch.Generator().manual_seed(0))
        cast_frozen(actor.lm, compute)
    if asked.recompute:
        recompute_layers(actor)
    actor = actor.to(compute.device)
    return PPOModels(actor, actor.lm if reference is None else reference, scorer)


def _of_zeros(kind: type[PreTrainedModel], asked: Round) -> PreTrainedModel:
    with torch.device("meta"):
        model = kind(asked.config())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for part in (*model.parameters(), *model.buffers()):
            part.zero_()
    model.tie_weights()
    return model.eval()


def main() -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("torch sees no GPU\n")
        return 2
    rounds = [MEASURED]
    if device == "cuda":
        make_deterministic(1)
        rounds = [asked for asked in ROUNDS if asked.limit is not None]
    for asked in rounds:
        found = taken(asked, device)
        reserved = torch.cuda.max_memory_reserved() if device == "cuda" else 0
        kept = f" ({reserved / 1e6:.0f} MB with what torch keeps)" if device == "cuda" else ""
        print(f"{asked.name}: took {found / 1e6:.0f} MB{kept}", flush=True)
        planned = plan(asked).most
        print(f"  planned {planned / 1e6:.0f} MB, {planned / found:.2f} of it", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
