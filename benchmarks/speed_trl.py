"""SFT and reward training by TRL's current trainers, run by benchmarks/speed.py beside ours.

    python benchmarks/speed_trl.py FOLDER SIZE DEVICE THREADS PRECISION [--work NAME]

Prints one JSON object. TRL runs its own trainers as they are; what is read are the times at which
a step ends.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import speed_trl_side as side
import speed_world as world
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import RewardConfig, RewardTrainer, SFTConfig, SFTTrainer


class StepEnds(TrainerCallback):
    """When each optimiser step ended."""

    def __init__(self, clock: world.Clock) -> None:
        self.times: list[float] = []
        self._clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(self._clock.now())


def sft(
    folder: Path, rows: list[Any], _: str, clock: world.Clock, common: dict[str, Any]
) -> dict[str, Any]:
    """Seconds of each step but the first."""
    data = Dataset.from_list(
        [
            {"input_ids": row["prompt"] + row["one"],
             "completion_mask": [0] * len(row["prompt"]) + [1] * len(row["one"])}
            for row in rows[: world.STEPS * world.BATCH]
        ]
    )  # fmt: skip
    config = SFTConfig(**common, per_device_train_batch_size=world.BATCH, max_steps=world.STEPS,
                       completion_only_loss=True, max_length=None)  # fmt: skip
    ends = StepEnds(clock)
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    SFTTrainer(
        side.causal(folder),
        config,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[ends],
    ).train()
    return {"steps": between(ends.times)}


def reward(
    folder: Path, rows: list[Any], _: str, clock: world.Clock, common: dict[str, Any]
) -> dict[str, Any]:
    """Seconds of each step but the first."""
    data = Dataset.from_list(
        [
            {"chosen_ids": row["prompt"] + row["one"], "rejected_ids": row["prompt"] + row["other"]}
            for row in rows[: world.STEPS * world.BATCH]
        ]
    )
    config = RewardConfig(**common, per_device_train_batch_size=world.BATCH,
                          max_steps=world.STEPS, max_length=None)  # fmt: skip
    ends = StepEnds(clock)
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    RewardTrainer(
        side.classifier(folder),
        config,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[ends],
    ).train()
    return {"steps": between(ends.times)}


def between(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


if __name__ == "__main__":
    side.measure(sys.argv[1:], {"sft": sft, "reward": reward})
