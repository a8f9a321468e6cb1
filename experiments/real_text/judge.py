"""A judge that the pipeline does not know: a reward model trained on pairs of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real_reward import ROOT, Options, passed, write_world
from experiments.real_text.worlds import Pair
from preferences.records import Preference
from tasks.running.staging import write_json_lines

RUN = {"seed": 0, "threads": 2, "device": "cpu", "precision": "float32", "bits": "native"}
REWARD = {
    "epochs": 1,
    "batch_size": 16,
    "micro_batch_size": 4,
    "packing": True,
    "max_tokens": 256,
    "probes": "report",
    "optimiser": {"name": "adamw", "lr": 1e-4, "warmup_steps": 5},
}


def preferences_of(pairs: Sequence[Pair]) -> list[Preference]:
    """The pairs that pass the gate, as the pipeline would have them."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "pairs.jsonl"
        write_json_lines(path, pairs)
        return passed(path)


def train_judge(folder: Path, pairs: Sequence[Pair], model: Path) -> None:
    """Train the stage `reward` on `pairs`, from `model`; `folder` is its reward model.

    Raises:
        subprocess.CalledProcessError: the stage ended with an error, which it has printed.
    """
    rows = preferences_of(pairs)
    train, heldout = ([row for row in rows if row.split == side] for side in ("train", "heldout"))
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        world = Path(name)
        write_world(world, train, heldout, Options(RUN, REWARD, model))
        subprocess.run(
            [sys.executable, "-m", "tasks.reward", "--round", "r1"],
            cwd=world,
            env=os.environ | {"PYTHONPATH": str(ROOT), "RLHF_SHIPPER": "driver"},
            check=True,
        )
        shutil.move(world / "models/rounds/r1/reward", folder)
