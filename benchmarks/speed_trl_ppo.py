"""The PPO of TRL's last release that has one, run by benchmarks/speed.py in that environment.

    python benchmarks/speed_trl_ppo.py FOLDER SIZE DEVICE THREADS PRECISION [--work NAME]

Prints one JSON object. TRL runs its own trainer as it is; what is read are the times at which it
generates, begins and ends its update. It decodes all responses of a rollout together, as ours
does and as its default would. In a ragged world its responses end where ours do. With
bfloat16 its `bf16` covers the update alone; what it leaves in float32 (generation, scores, values)
is computed in bfloat16 here, and its frozen models are kept in it, as ours are.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import speed_trl_side as side
import speed_world as world
import torch
from datasets import Dataset
from transformers import AutoTokenizer, LogitsProcessor
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer


def ppo(
    folder: Path, rows: list[Any], size: str, clock: world.Clock, common: dict[str, Any]
) -> dict[str, Any]:
    """One iteration, its sampling and its update; the last, where some come before it."""
    count = world.responses_of(size)
    iterations = 1 + world.warming(clock.device, "trl", size)
    config = PPOConfig(
        **common,
        total_episodes=count * iterations,
        per_device_train_batch_size=count,
        gradient_accumulation_steps=1,
        num_mini_batches=world.MINIBATCHES,
        num_ppo_epochs=world.PASSES,
        local_rollout_forward_batch_size=count,
        num_sample_generations=0,
        response_length=rows[0]["most"],
        stop_token="eos",
        temperature=1.0,
        missing_eos_penalty=1.0,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy", padding_side="left")
    frozen = torch.bfloat16 if common["bf16"] else torch.float32
    model, ref = side.causal(folder), side.causal(folder, frozen)
    lengths = world.lengths_by_prompt(rows[:count])
    if set(lengths.values()) != {None}:
        model.generate = partial(model.generate, logits_processor=[Lengths(lengths)])
    scorer, critic = side.classifier(folder, frozen), side.classifier(folder)
    data = Dataset.from_list([{"input_ids": row["prompt"]} for row in rows[:count]])
    trainer = PPOTrainer(
        config, tokenizer, model, ref, scorer, train_dataset=data, value_model=critic,
        eval_dataset=data,
    )  # fmt: skip
    if common["bf16"]:
        for name in ("batch_generation", "forward", "get_reward"):
            function = getattr(ppo_trainer, name)
            setattr(ppo_trainer, name, in_bfloat16(function, trainer.accelerator.device.type))
    watch = Watch(trainer, clock, prompt=len(rows[0]["prompt"]))
    trainer.train()
    assert watch.steps == iterations * world.PASSES * world.MINIBATCHES, watch.steps
    return {"phases": watch.phases()}


def in_bfloat16(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The function, its products in bfloat16."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16):
            return function(*args, **kwargs)

    return call


class Lengths(LogitsProcessor):
    """Ends the response to each prompt at the length that was drawn for it."""

    def __init__(self, lengths: dict[tuple[int, ...], int | None]) -> None:
        self._lengths = lengths

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        asked = [self._lengths[tuple(ids)] for ids in input_ids[:, : world.PROMPT].tolist()]
        return world.force_ends(scores, input_ids.shape[1] - world.PROMPT, asked)


class Watch:
    """When the trainer generates, begins its update and ends its last step."""

    def __init__(self, trainer: Any, clock: world.Clock, prompt: int) -> None:
        self.steps = 0
        self._prompt = prompt
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
        self._marks, self._tokens = {"began": self._clock.now()}, 0
        made = self._generate(*args, **kwargs)
        self._marks["generated"] = self._clock.now()
        ended = (made[0][:, self._prompt :] == world.END).int()
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


if __name__ == "__main__":
    side.measure(sys.argv[1:], {"ppo-separate": ppo})
