"""One real PPO step, explained in seven numbered steps with shapes, values and equations.

    python -m rlhf.walkthrough

Runs on the last round that `make repro` has made, else on small models that it makes itself. All
is computed by the functions that train (rlhf.rollouts, rlhf.ppo, rlhf.ppo_update); nothing is
written to disk. It ends with what a KL coefficient of 0 would change, on the same responses.
"""
# ruff: noqa: E402 (the bits are chosen before torch is imported)

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rlhf.bits import choose

choose("portable")

import torch
import transformers

from rlhf.chat import TokenizerError
from rlhf.compute import Compute, make_deterministic
from rlhf.model_folders import ModelFolderError
from rlhf.reward_functions import RewardFunctionError
from rlhf.rule_rewards import WordListError
from rlhf.seeding import Seeds
from rlhf.templates import TemplateError
from rlhf.walkthrough.lines import tell
from rlhf.walkthrough.models import NO_ROUND, find_round, load_world, make_world, rounds_of
from rlhf.walkthrough.step import take_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step and print it; 0, or 2 if the models cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m rlhf.walkthrough",
        description="One real PPO step in seven numbered steps, with shapes, values and equations.",
    )
    parser.add_argument("--round", help="a round below models/ (default: the last one made)")
    parser.add_argument(
        "--small", action="store_true", help="small models made now, even if a round is there"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sampled responses (default: 0)")
    options = parser.parse_args(arguments)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    make_deterministic(torch.get_num_threads())
    compute, seeds = Compute(torch.device("cpu"), "float32"), Seeds(options.seed)
    key = None if options.small else options.round or find_round(Path())
    if key is not None and key not in (made := rounds_of(Path())):
        sys.stderr.write(
            f"walkthrough: no policy of round {key} below models/, with SFT and prompts; there "
            f"are: {', '.join(made) or 'none'} (`make repro` makes them, --small needs none)\n"
        )
        return 2
    try:
        if key is None:
            why = "as --small asks" if options.small else NO_ROUND
            world = make_world(seeds, compute, why)
        else:
            world = load_world(Path(), key, compute)
        step = take_step(world, compute=compute, seeds=seeds)
    except (
        ModelFolderError, TemplateError, TokenizerError, WordListError, RewardFunctionError,
        OSError,
    ) as error:  # fmt: skip
        sys.stderr.write(f"walkthrough: {error}\n")
        return 2
    sys.stdout.writelines(f"{line}\n" for line in tell(world, step))
    return 0


if __name__ == "__main__":
    sys.exit(main())
