"""TRL's half of the parity check: run by benchmarks/trl_parity.py in the environment that has TRL.

Calls the PPO helpers of the installed TRL. Rewards, GAE and losses stand in the middle of
`PPOTrainer.train`, so those lines are taken from its source as installed, between two of its own
lines, and executed on our inputs: what runs is TRL's code, none of which is copied here.
"""

import inspect
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl.experimental.ppo import ppo_trainer
from trl.experimental.ppo.ppo_trainer import (
    PPOTrainer,
    forward,
    masked_mean,
    masked_whiten,
    truncate_response,
)
from trl.experimental.utils import first_true_indices, get_reward
from trl.trainer.utils import selective_log_softmax

REWARDS_TO_ADVANTAGES = (
    "contain_eos_token = torch.any(",
    "advantages = torch.masked_fill(advantages, padding_mask, 0)",
)
LOSSES = (
    "logits = output.logits[:, context_length - 1 : -1]",
    "approxkl = 0.5 * (logprobs_diff**2).mean()",
)
PAD, EOS = 0, 1


def lines_of_training(first: str, last: str) -> str:
    """The lines of PPOTrainer.train from the one that begins with `first` to that with `last`."""
    source = inspect.getsource(PPOTrainer.train).splitlines()
    begin = next(n for n, line in enumerate(source) if line.strip().startswith(first))
    end = next(n for n, line in enumerate(source) if n >= begin and line.strip().startswith(last))
    return textwrap.dedent("\n".join(source[begin : end + 1]))


def run_lines(lines: tuple[str, str], names: dict[str, Any]) -> dict[str, Any]:
    """Everything that TRL's own lines leave behind when they run on these names."""
    scope = {**vars(ppo_trainer), "empty_cache": lambda: None, **names}
    exec(lines_of_training(*lines), scope)
    return scope


def models_say(given: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Log-probabilities, values and scores of a batch from the same weights as ours."""
    responses, context = given["response_ids"], given["prompt_ids"].shape[1]
    whole = torch.cat([given["prompt_ids"], responses], dim=1)
    policy = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32).eval()
    scorer = AutoModelForSequenceClassification.from_pretrained(
        folder / "reward", dtype=torch.float32
    ).eval()
    logits = forward(policy, whole, PAD).logits[:, context - 1 : -1]
    logits = logits / (float(given["temperature"]) + 1e-7)
    full_values, scores, _ = get_reward(scorer, whole, PAD, context)
    # Peer defect 1: with one id for padding and end, the end is no longer seen.
    as_pad = torch.where(responses == EOS, PAD, responses)
    return {
        "logprobs": selective_log_softmax(logits, responses),
        "model_values": full_values[:, context - 1 : -1].squeeze(-1),
        "scores": scores,
        "truncated": truncate_response(EOS, PAD, responses),
        "first_pad": first_true_indices(responses == PAD),
        "first_pad_where_pad_is_end": first_true_indices(as_pad == PAD),
    }


def rewards_to_advantages(
    given: dict[str, torch.Tensor], **settings: Any
) -> dict[str, torch.Tensor]:
    """What stands between the scores and the update."""
    responses = given["response_ids"]
    args = SimpleNamespace(
        missing_eos_penalty=float(given["missing_end_penalty"]),
        kl_coef=float(given["kl_coef"]),
        gamma=float(given["gamma"]),
        lam=float(given["lam"]),
        **{"kl_estimator": "k1", "whiten_rewards": False, **settings},
    )
    names = {
        "self": SimpleNamespace(processing_class=SimpleNamespace(eos_token_id=EOS), args=args),
        "args": args,
        "responses": responses,
        "postprocessed_responses": responses,
        "sequence_lengths": first_true_indices(responses == PAD) - 1,
        **{name: given[name].clone() for name in ("scores", "logprobs", "ref_logprobs", "values")},
    }
    done = run_lines(REWARDS_TO_ADVANTAGES, names)
    wanted = ("rewards", "advantages", "returns", "values", "padding_mask", "padding_mask_p1")
    return {name: done[name] for name in wanted}


def losses(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Losses, their gradients and the logged metrics of one micro-batch."""
    logits = given["new_logits"].clone().requires_grad_()
    values = given["new_values"].clone().requires_grad_()
    padding = ~given["response_mask"]
    names = {
        "output": SimpleNamespace(logits=logits * 1.0),
        "vpred_temp": values.unsqueeze(-1) * 1.0,
        "context_length": 1,
        "args": SimpleNamespace(
            temperature=float(given["temperature"]),
            cliprange=float(given["clip_range"]),
            cliprange_value=float(given["clip_range"]),
            vf_coef=float(given["value_coef"]),
        ),
        "mb_responses": given["response_ids"],
        "mb_logprobs": torch.where(padding, ppo_trainer.INVALID_LOGPROB, given["logprobs"]),
        "mb_advantage": torch.where(padding, 0.0, given["advantages"]),
        "mb_return": given["returns"],
        "mb_values": given["values"],
        "padding_mask": padding,
        "padding_mask_p1": padding,
        "micro_batch_inds": torch.arange(len(padding)),
        "accelerator": SimpleNamespace(backward=lambda loss: loss.backward()),
        "optimizer": SimpleNamespace(step=lambda: None, zero_grad=lambda: None),
    }
    done = run_lines(LOSSES, names)
    metrics = {name: done[name] for name in ("pg_loss", "vf_loss", "pg_clipfrac", "vf_clipfrac")}
    return metrics | {
        "approxkl": done["approxkl"],
        "entropy": done["entropy"].mean(),
        "ratio": done["ratio"].mean(),
        "logits_gradient": logits.grad,
        "values_gradient": values.grad,
    }


def main() -> None:
    """Read inputs.npz and the models from the folder named, write outputs.npz there."""
    folder = Path(sys.argv[1])
    with np.load(folder / "inputs.npz") as file:
        given = {name: torch.from_numpy(file[name]) for name in file.files}
    mask = given["response_mask"]
    found = models_say(given, folder)
    found |= {
        "masked_mean": masked_mean(given["advantages"], mask),
        "whitened": masked_whiten(given["advantages"], mask),
        "rescaled": masked_whiten(given["advantages"], mask, shift_mean=False),
    }
    for name, settings in (
        ("k1", {}),
        ("k3", {"kl_estimator": "k3"}),
        ("whitened_rewards", {"whiten_rewards": True}),
    ):
        made = rewards_to_advantages(given, **settings)
        found |= {f"{name}_{part}": value for part, value in made.items()}
    found |= losses(given)
    arrays = {name: value.detach().numpy() for name, value in found.items()}
    np.savez(folder / "outputs.npz", **arrays)


if __name__ == "__main__":
    main()
