"""TRL's side of experiments/trl_ppo.py, run in the environment that has TRL.

    python benchmarks/trl_ppo_side.py ORDER.json

The order names the folders of the models and what TRL's options can express of our recipe. Writes
the policy to the folder `policy` beside the order.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_constant_schedule_with_warmup,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer


def main(path: Path) -> None:
    """Train as the order says."""
    order = json.loads(path.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    config = PPOConfig(
        output_dir=str(path.parent / "trl"),
        seed=order["seed"],
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        total_episodes=len(order["prompts"]),
        per_device_train_batch_size=order["rollout_size"],
        gradient_accumulation_steps=1,
        num_mini_batches=order["minibatches"],
        num_ppo_epochs=order["epochs"],
        local_rollout_forward_batch_size=order["rollout_size"],
        num_sample_generations=0,
        stop_token="eos",
        **order["options"],
    )
    tokenizer = AutoTokenizer.from_pretrained(order["sft"], padding_side="left")
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(order["sft"], dtype=torch.float32) for _ in range(2)
    )
    scorer, critic = (
        AutoModelForSequenceClassification.from_pretrained(
            order["reward"], num_labels=1, dtype=torch.float32
        )
        for _ in range(2)
    )
    groups = [
        {"params": list(policy.parameters()), "lr": order["rate"]},
        {"params": list(critic.parameters()), "lr": order["value_rate"]},
    ]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, order["beta2"]), weight_decay=0.0)
    # TRL's schedule advances once for each rollout, not once for each step of the optimiser.
    schedule = get_constant_schedule_with_warmup(optimiser, order["warmup_rollouts"])
    data = Dataset.from_list([{"input_ids": ids} for ids in order["prompts"]])
    trainer = PPOTrainer(
        config, tokenizer, policy, reference, scorer, train_dataset=data, value_model=critic,
        eval_dataset=data.select(range(order["rollout_size"])), optimizers=(optimiser, schedule),
    )  # fmt: skip
    trainer.train()
    policy.save_pretrained(path.parent / "policy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
