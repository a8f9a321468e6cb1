"""Reward models on real pairs by the stage `reward`, against two baselines.

    nice python -m benchmarks.real_reward polite_instructions DATA/polite_instructions/FILE
    nice python -m benchmarks.real_reward hh_helpful DATA/hh_helpful/FILE --report hh.json
    nice python -m benchmarks.real_reward ukp_arguments DATA/ukp_arguments/FILE --seed 1
    nice python -m benchmarks.real_reward polite_instructions DATA/polite_instructions/FILE \
        --base FOLDER --precision bfloat16 --threads 2 --fold 0 --fold 1

The pairs that pass the gate are split into folds of whole prompts (of whole debates for UKP, so
that both sides of a debate are held out together). For each fold, `python -m tasks.reward` runs in
its own folder with the fold held out; no part of a held-out pair is trained on. `models/sft` there
is a small, randomly initialised Llama with a tokenizer trained on the texts of the train side, or
with `--base` a causal language model in Hugging Face format. Intervals take pairs as independent;
those of one debate are not.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from ruamel.yaml import YAML

from preferences.baselines import bag_of_words
from preferences.formats.reading import open_source
from preferences.formats.writing import Unsettled
from preferences.gate import run_gate
from preferences.grouped_shares import longer_wins
from preferences.judging import Judged
from preferences.params import ValidateParams
from preferences.records import Comparison, Preference, Split, prompt_text
from preferences.statistics import share
from rlhf.params.base import EmbeddedModelParams
from rlhf.pretrain import build_model, train_tokenizer
from rlhf.seeding import Seeds
from tasks.running.staging import model_hash, write_json_lines, write_manifest

ROOT = Path(__file__).resolve().parents[1]
SIZE = EmbeddedModelParams(
    vocabulary_size=2048, layers=2, hidden_size=64, heads=2, mlp_size=192, max_positions=2048
)
GATE = ValidateParams(heldout_fraction=0.15)
"""What the published numbers were split with; the folds come after it."""
REFERENCES = 32
"""Train pairs whose answers stand in for SFT's own, on which the stage fits its normaliser; the
order of two scores does not depend on it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one data set is split, and how a model that knows nothing yet learns it."""

    folds: int
    epochs: int
    max_tokens: int
    micro_batch_size: int
    """Pairs at once on a base model, of which 30 layers of 1,000 tokens have to be kept."""


RECIPES = {
    "hh_helpful": Recipe(folds=5, epochs=1, max_tokens=1024, micro_batch_size=2),
    "ukp_arguments": Recipe(folds=4, epochs=1, max_tokens=512, micro_batch_size=8),
    "polite_instructions": Recipe(folds=5, epochs=8, max_tokens=512, micro_batch_size=16),
}
SCRATCH = {
    "batch_size": 32,
    "micro_batch_size": 32,
    "optimiser": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "warmup_steps": 20},
}
BASED = {
    "epochs": 2,
    "batch_size": 16,
    "optimiser": {"name": "adamw", "lr": 1e-4, "weight_decay": 0.0, "warmup_steps": 5},
}
"""What a model that knows its language already is trained with."""


@dataclass(frozen=True, slots=True)
class Options:
    """Sections of params.yaml, and the model to start from."""

    run: dict[str, Any]
    reward: dict[str, Any]
    base: Path | None


def passed(path: Path) -> list[Preference]:
    """The pairs that the gate lets pass, train side first."""
    judged = Judged(rows=tuple(Unsettled().settle(open_source(path))))
    with tempfile.TemporaryDirectory() as folder:
        result = run_gate(judged, [], [], GATE, report_dir=Path(folder))
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


def write_world(
    folder: Path, train: Sequence[Preference], heldout: Sequence[Preference], options: Options
) -> None:
    """All that the stage reads: params.yaml, `models/sft` and the round's data."""
    yaml = YAML()
    params = yaml.load(ROOT / "params.yaml")
    params["run"] |= options.run
    params["reward"] |= options.reward
    params["rounds"] = {"r1": params["rounds"]["r1"]}
    params["final"] = "r1"
    yaml.dump(params, folder / "params.yaml")
    sft = folder / "models/sft"
    if options.base is not None:
        shutil.copytree(options.base, sft)
    else:
        texts = {
            text for row in train for text in (prompt_text(row.prompt), row.chosen, row.rejected)
        }
        tokenizer = train_tokenizer(sorted(texts), SIZE.vocabulary_size)
        for part in (build_model(SIZE, tokenizer, Seeds(options.run["seed"])), tokenizer):
            part.save_pretrained(sft)
    write_manifest(sft, params={}, inputs={})
    round_folder = folder / "data/rounds/r1"
    (round_folder / "preferences").mkdir(parents=True)
    sides: dict[Split, Sequence[Preference]] = {"train": train, "heldout": heldout}
    for split, rows in sides.items():
        placed = [replace(row, split=split, round="r1").to_row() for row in rows]
        write_json_lines(round_folder / f"preferences/{split}.jsonl", placed)
    hashed = model_hash(sft)
    references = [
        Comparison(
            pair_id=row.pair_id,
            round="r1",
            prompt_id=row.prompt_id,
            prompt=row.prompt,
            response_a=row.chosen,
            response_b=row.rejected,
            policy_a=hashed,
            policy_b=hashed,
        ).to_row()
        for row in train[:REFERENCES]
    ]
    write_json_lines(round_folder / "comparisons.jsonl", references)


def run_stage(
    train: Sequence[Preference], heldout: Sequence[Preference], options: Options
) -> tuple[int, int]:
    """Held-out pairs whose chosen answer scores higher, and all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_world(folder, train, heldout, options)
        subprocess.run(
            [sys.executable, "-m", "tasks.reward", "--round", "r1"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "RLHF_SHIPPER": "driver"},
            check=True,
        )
        found = json.loads((folder / "results/reward/r1/metrics.json").read_text(encoding="utf-8"))
    accuracy = found["labels"]["accuracy"]
    return round(accuracy["mean"] * accuracy["n"]), accuracy["n"]


def measure(
    name: str, path: Path, numbers: Sequence[int], train_pairs: int | None, options: Options
) -> dict[str, Any]:
    """All three, pooled over the folds of these numbers."""
    folds = folds_of(passed(path), name, RECIPES[name].folds)
    hits = {"reward model": 0, "bag of words": 0, "longer wins": 0}
    cases = dict.fromkeys(hits, 0)
    for number in numbers:
        started, heldout = time.monotonic(), folds[number]
        train = [row for index, fold in enumerate(folds) if index != number for row in fold]
        train = sorted(train, key=lambda row: row.pair_id)[:train_pairs]
        bag, longer = bag_of_words(train, heldout), longer_wins(heldout)
        assert bag is not None
        assert longer is not None
        found = {
            "reward model": run_stage(train, heldout, options),
            "bag of words": (round(bag.mean * bag.n), bag.n),
            "longer wins": (round(longer.mean * longer.n), longer.n),
        }
        for key, (hit, n) in found.items():
            hits[key] += hit
            cases[key] += n
        words = ", ".join(f"{key} {hit / n:.3f}" for key, (hit, n) in found.items())
        sizes, seconds = f"{len(train)} -> {len(heldout)} pairs", time.monotonic() - started
        sys.stderr.write(f"{name} fold {number}, {sizes}: {words} ({seconds:.0f} s)\n")
    pooled = {key: share(hits[key], cases[key]) for key in hits}
    return {
        "data": name,
        "folds": list(numbers),
        "train_pairs": train_pairs,
        "run": options.run,
        "reward": options.reward,
        **{key: each.to_json() for key, each in pooled.items() if each},
    }


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fold", type=int, action="append", help="all, unless some are named")
    parser.add_argument("--train-pairs", type=int, help="at most so many, drawn by their ids")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--base", type=Path, help="folder of a causal model to start from")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    recipe = RECIPES[given.name]
    reward = {"epochs": recipe.epochs, "max_tokens": recipe.max_tokens} | SCRATCH
    if given.base is not None:
        reward |= BASED | {"micro_batch_size": recipe.micro_batch_size}
    if given.epochs is not None:
        reward["epochs"] = given.epochs
    options = Options(
        run={
            "seed": given.seed,
            "threads": given.threads,
            "device": "cpu",
            "precision": given.precision,
        },
        reward=reward,
        base=given.base,
    )
    numbers = given.fold or range(recipe.folds)
    found = measure(given.name, given.path, numbers, given.train_pairs, options)
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if given.report:
        given.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
