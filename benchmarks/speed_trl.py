"""TRL's side of the speed benchmark, run by benchmarks/speed.py in the environment that has TRL.

    python benchmarks/speed_trl.py FOLDER SIZE DEVICE THREADS

Prints one JSON object. TRL runs its own trainers as they are; what is read are the times at which
it generates, begins and ends its update, and ends a step.
"""

import contextlib
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import speed_world as world
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl import RewardConfig, RewardTrainer, SFTConfig, SFTTrainer
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer


class StepEnds(TrainerCallback):
    """When each optimiser step ended."""

    def __init__(self, clock: world.Clock) -> None:
        self.times: list[float] = []
        self._clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(self._clock.now())


def main(arguments: list[str]) -> None:
    folder, (size, device, threads) = Path(arguments[0]), arguments[1:4]
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    common = {
        "output_dir": str(folder / "trl"),
        "learning_rate": world.RATE,
        "lr_scheduler_type": "constant",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "max_grad_norm": 1.0,
    }

    def run(work: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        torch.set_num_threads(int(threads))
        torch.set_flush_denormal(True)
        with contextlib.redirect_stdout(sys.stderr):
            found = work(folder, rows, size, world.Clock(device), common)
        return found | {"peak": world.peak_bytes(device), "ceiling": world.ceiling(size, device)}

    works = {"ppo-separate": ppo, "sft": sft, "reward": reward}
    json.dump({name: world.apart(partial(run, work)) for name, work in works.items()}, sys.stdout)


def ppo(
    folder: Path, rows: list[Any], size: str, clock: world.Clock, common: dict[str, Any]
) -> dict[str, Any]:
    """One iteration, its sampling and its update."""
    count = world.responses_of(size)
    config = PPOConfig(
        **common,
        total_episodes=count,
        per_device_train_batch_size=count,
        gradient_accumulation_steps=1,
        num_mini_batches=world.MINIBATCHES,
        num_ppo_epochs=world.PASSES,
        local_rollout_forward_batch_size=world.BATCH,
        num_sample_generations=0,
        response_length=world.ANSWER,
        stop_token="eos",
        temperature=1.0,
        missing_eos_penalty=1.0,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy", padding_side="left")
    model, ref = (causal(folder) for _ in range(2))
    scorer, critic = (classifier(folder) for _ in range(2))
    data = Dataset.from_list([{"input_ids": row["prompt"]} for row in rows[:count]])
    trainer = PPOTrainer(
        config, tokenizer, model, ref, scorer, train_dataset=data, value_model=critic,
        eval_dataset=data,
    )  # fmt: skip
    watch = Watch(trainer, clock)
    trainer.train()
    assert watch.steps == world.PASSES * world.MINIBATCHES, watch.steps
    return {"phases": watch.phases()}


class Watch:
    """When the trainer generates, begins its update and ends its last step."""

    def __init__(self, trainer: Any, clock: world.Clock) -> None:
        self.steps = 0
        self._clock, self._marks, self._tokens = clock, dict[str, float](), 0
        self._generate = ppo_trainer.batch_generation
        self._accumulate = trainer.accelerator.accumulate
        self._step = trainer.optimizer.step
        ppo_trainer.batch_generation = self._generating
        trainer.accelerator.accumulate = self._accumulating
        trainer.optimizer.step = self._stepping

    def phases(self) -> dict[str, float]:
        """Seconds by phase, and the tokens up to the end of each response."""
        marks = self._marks
        return {
            "total": marks["updated"] - marks["began"],
            "rollout": marks["generated"] - marks["began"],
            "scoring": marks["updating"] - marks["generated"],
            "update": marks["updated"] - marks["updating"],
            "tokens": float(self._tokens),
        }

    def _generating(self, *args: Any, **kwargs: Any) -> Any:
        self._marks["began"] = self._clock.now()
        made = self._generate(*args, **kwargs)
        self._marks["generated"] = self._clock.now()
        ended = (made[0][:, world.PROMPT :] == world.END).int()
        behind = (ended.cumsum(dim=1) - ended).bool()
        self._tokens += int((~behind).sum())
        return made

    def _accumulating(self, *args: Any) -> Any:
        self._marks.setdefault("updating", self._clock.now())
        return self._accumulate(*args)

    def _stepping(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        result = self._step(*args, **kwargs)
        self._marks["updated"] = self._clock.now()
        return result


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
        causal(folder), config, train_dataset=data, processing_class=tokenizer, callbacks=[ends]
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
        classifier(folder), config, train_dataset=data, processing_class=tokenizer, callbacks=[ends]
    ).train()
    return {"steps": between(ends.times)}


def between(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def causal(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)


def classifier(folder: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(
        folder / "reward", dtype=torch.float32
    )


if __name__ == "__main__":
    main(sys.argv[1:])
