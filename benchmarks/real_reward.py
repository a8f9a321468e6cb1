"""Reward models on real pairs, against "the longer answer wins" and a bag of words.

    nice python -m benchmarks.real_reward polite_instructions DATA/polite_instructions/FILE
    nice python -m benchmarks.real_reward hh_helpful DATA/hh_helpful/FILE --report hh.json
    nice python -m benchmarks.real_reward ukp_arguments DATA/ukp_arguments/FILE --seed 1
    nice python -m benchmarks.real_reward polite_instructions DATA/polite_instructions/FILE \
        --base FOLDER --precision bfloat16

What the gate lets pass is cut into folds of whole prompts (of whole debates for UKP, so that both
sides of a debate are held out together). On each fold a tokenizer is trained on the texts of the
train side, and a small Llama that knows nothing yet learns the pairs by `rlhf.reward`; all three
are measured on the held-out fold. Nothing of a held-out pair is trained on. With `--base` the
reward model starts from a causal language model in the hub's format, as `base.model` would.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from preferences.baselines import bag_of_words
from preferences.formats.reading import open_source
from preferences.formats.writing import Unsettled
from preferences.gate import run_gate
from preferences.judging import Judged
from preferences.params import ValidateParams
from preferences.records import Preference, prompt_text
from preferences.statistics import longer_wins, share
from rlhf import reward
from rlhf.compute import Compute, make_deterministic
from rlhf.models import RewardModel, load_reward_model, load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.params.base import EmbeddedModelParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.reward import RewardParams
from rlhf.pretrain import build_model, train_tokenizer
from rlhf.seeding import Seeds

SIZE = EmbeddedModelParams(
    vocabulary_size=2048, layers=2, hidden_size=64, heads=2, mlp_size=192, max_positions=2048
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one data set is split and learnt."""

    folds: int
    reward: RewardParams


def _recipe(folds: int, *, epochs: int, max_tokens: int) -> Recipe:
    optimiser = OptimiserParams(lr=1e-3, weight_decay=0.1)
    return Recipe(
        folds,
        RewardParams(
            epochs=epochs,
            max_tokens=max_tokens,
            batch_size=32,
            micro_batch_size=32,
            optimiser=optimiser,
        ),
    )


BASED = OptimiserParams(lr=1e-4, weight_decay=0.0, warmup_steps=5)
"""What a model that knows its language already is trained with, two passes in batches of 16."""

RECIPES = {
    "hh_helpful": _recipe(5, epochs=1, max_tokens=1024),
    "ukp_arguments": _recipe(4, epochs=1, max_tokens=512),
    "polite_instructions": _recipe(5, epochs=8, max_tokens=512),
}


def passed(path: Path) -> list[Preference]:
    """The pairs that the gate lets pass, train side first."""
    judged = Judged(rows=tuple(Unsettled().settle(open_source(path))))
    with tempfile.TemporaryDirectory() as folder:
        result = run_gate(judged, [], [], ValidateParams(), report_dir=Path(folder))
    return [*result.train, *result.heldout]


def group_of(row: Preference, name: str) -> str:
    """What must not be on both sides of a split: the prompt, or the whole debate of UKP."""
    prompt = prompt_text(row.prompt)
    return prompt.split("\nStance:")[0] if name == "ukp_arguments" else prompt


def folds_of(rows: Sequence[Preference], name: str, count: int) -> list[list[Preference]]:
    """Groups in the order of their hashes, each into the smallest fold so far."""
    groups: dict[str, list[Preference]] = {}
    for row in rows:
        groups.setdefault(group_of(row, name), []).append(row)
    folds: list[list[Preference]] = [[] for _ in range(count)]
    for group in sorted(groups, key=lambda text: hashlib.sha256(text.encode()).hexdigest()):
        min(folds, key=len).extend(groups[group])
    return folds


def learn(
    train: Sequence[Preference], recipe: Recipe, seeds: Seeds, compute: Compute, base: Path | None
) -> tuple[RewardModel, reward.Encoder]:
    """A reward model and its encoder: of the train side alone, or on a base model."""
    head = seeds.torch("reward", "head")
    if base is not None:
        tokenizer = load_tokenizer(base)
        model = load_reward_model(base, compute.device, head)
    else:
        texts = sorted(
            {text for row in train for text in (prompt_text(row.prompt), row.chosen, row.rejected)}
        )
        tokenizer = train_tokenizer(texts, SIZE.vocabulary_size)
        model = _fresh(tokenizer, seeds, compute, head)
    encoder = reward.Encoder(tokenizer)
    pairs = [
        reward.EncodedPair(
            encoder.encode(row.prompt, row.chosen),
            encoder.encode(row.prompt, row.rejected),
            0.0,
            1.0,
        )
        for row in train
    ]
    kept = [pair for pair in pairs if len(pair) <= recipe.reward.max_tokens]
    training = Training(model, Optimiser(recipe.reward.optimiser, model.named_parameters()))
    hits: list[float] = []
    for step in reward.train(
        training, kept, recipe.reward, pad_id=encoder.pad_id, compute=compute, seeds=seeds
    ):
        hits.append(step.accuracy)
        if training.step % 20 == 0:
            recent = sum(hits[-20:]) / len(hits[-20:])
            sys.stderr.write(f"  step {training.step} loss {step.loss:.3f} accuracy {recent:.3f}\n")
    return model, encoder


def _fresh(
    tokenizer: PreTrainedTokenizerFast, seeds: Seeds, compute: Compute, head: torch.Generator
) -> RewardModel:
    """A model that knows nothing yet, with the head that the stage `reward` would give it."""
    with tempfile.TemporaryDirectory() as folder:
        for part in (build_model(SIZE, tokenizer, seeds), tokenizer):
            part.save_pretrained(folder)
        return load_reward_model(Path(folder), compute.device, head)


def hits_of(
    model: RewardModel, encoder: reward.Encoder, rows: Sequence[Preference], compute: Compute
) -> int:
    """Pairs whose chosen answer scores higher."""
    encoded = [
        encoder.encode(row.prompt, answer) for row in rows for answer in (row.chosen, row.rejected)
    ]
    scores = reward.score_rows(
        model, encoded, pad_id=encoder.pad_id, compute=compute, batch_size=32
    )
    return sum(better > worse for better, worse in zip(scores[::2], scores[1::2], strict=True))


def measure(
    name: str,
    path: Path,
    recipe: Recipe,
    seed: int,
    count: int | None,
    compute: Compute,
    base: Path | None,
) -> dict[str, Any]:
    """All three, pooled over the first `count` folds (all by default)."""
    folds = folds_of(passed(path), name, recipe.folds)
    hits = {"reward model": 0, "bag of words": 0, "longer wins": 0}
    cases = dict.fromkeys(hits, 0)
    for number, heldout in enumerate(folds[:count]):
        started = time.process_time()
        train = [row for index, fold in enumerate(folds) if index != number for row in fold]
        model, encoder = learn(train, recipe, Seeds(seed), compute, base)
        bag, longer = bag_of_words(train, heldout), longer_wins(heldout)
        assert bag is not None
        assert longer is not None
        found = {
            "reward model": (hits_of(model, encoder, heldout, compute), len(heldout)),
            "bag of words": (round(bag.mean * bag.n), bag.n),
            "longer wins": (round(longer.mean * longer.n), longer.n),
        }
        for key, (hit, n) in found.items():
            hits[key] += hit
            cases[key] += n
        words = ", ".join(f"{key} {hit / n:.3f}" for key, (hit, n) in found.items())
        seconds = time.process_time() - started
        sys.stderr.write(f"{name} fold {number}, n {len(heldout)}: {words} ({seconds:.0f} s)\n")
    pooled = {key: share(hits[key], cases[key]) for key in hits}
    return {
        "data": name,
        "seed": seed,
        "folds": min(len(folds), count or len(folds)),
        **{key: each.to_json() for key, each in pooled.items() if each},
    }


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folds", type=int, help="only the first ones")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--base", type=Path, help="folder of a causal model to start from")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    make_deterministic(options.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    compute = Compute(torch.device("cpu"), options.precision)
    recipe = RECIPES[options.name]
    if options.base is not None:
        short = replace(
            recipe.reward, epochs=2, batch_size=16, micro_batch_size=16, optimiser=BASED
        )
        recipe = replace(recipe, reward=short)
    found = measure(
        options.name, options.path, recipe, options.seed, options.folds, compute, options.base
    )
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if options.report:
        options.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
