"""Our numbers beside those of TRL, row by row, with the difference that each may have."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.trl_inputs import NUMBERS
from rlhf.advantages import gae
from rlhf.batches import Rollout
from rlhf.kl import kl_estimate
from rlhf.logprobs import token_logprobs_and_entropy
from rlhf.masked import last_token_index, masked_mean, masked_sum, rescale, sequence_sums, whiten
from rlhf.params.kl import KLEstimator
from rlhf.ppo_losses import policy_loss, value_loss
from rlhf.reward_shaping import penalise_missing_end, shape_rewards

FLOAT32 = 1e-5
"""Two forward passes in float32 through different code."""
FLOAT64 = 1e-9
"""The same arithmetic in float64."""
COUNTED = 1e-7
"""TRL counts in float32."""
TEMPERATURE = 1e-5
"""TRL divides by the temperature plus 1e-7."""


@dataclass(frozen=True)
class Row:
    """One comparison: the largest difference found and what is allowed."""

    what: str
    ours: Tensor
    theirs: Tensor
    allowed: float
    note: str = ""

    @property
    def difference(self) -> float:
        if self.ours.shape != self.theirs.shape:
            return float("inf")
        return (self.ours.double() - self.theirs.double()).abs().max().item()

    @property
    def sound(self) -> bool:
        return self.difference <= self.allowed


def compare_models(rollout: Rollout, trl: dict[str, Tensor]) -> list[Row]:
    """Forward passes, values and scores from the same weights, and where responses end."""
    mask = rollout.response_mask
    lengths = last_token_index(mask) + 1
    return [
        Row("log-probabilities", rollout.logprobs[mask], trl["logprobs"][mask], TEMPERATURE,
            "`forward`, `selective_log_softmax`; T + 1e-7 there"),
        Row("values", rollout.values[mask], trl["model_values"][mask], FLOAT32,
            "`get_reward` on the value model"),
        Row("scores", rollout.scores, trl["scores"], FLOAT32,
            "`get_reward` on the reward model, at the last real token"),
        Row("response lengths", lengths, trl["first_pad"], 0, "`first_true_indices`"),
        Row("tokens after the end", rollout.response_ids, trl["truncated"], 0,
            "`truncate_response` finds nothing to cut in what our sampler returns"),
        Row("padding mask", ~mask, trl["k1_padding_mask"], 0),
    ]  # fmt: skip


def compare_arithmetic(given: dict[str, Tensor], trl: dict[str, Tensor]) -> list[Row]:
    """Masked statistics, losses and gradients on the same numbers."""
    mask, advantages = given["response_mask"], given["advantages"]
    count = int(mask.sum())
    bessel = (count / (count - 1)) ** 0.5
    whitened = torch.where(mask, trl["whitened"], 0.0)
    rescaled = torch.where(mask, trl["rescaled"], 0.0)
    mean = masked_mean(advantages, mask)
    logits, values = (given[name].clone().requires_grad_() for name in ("new_logits", "new_values"))
    current = token_logprobs_and_entropy(
        logits[:, :-1], given["response_ids"], temperature=NUMBERS["temperature"]
    )
    policy = policy_loss(
        current.logprobs, given["logprobs"], advantages, mask, clip_range=NUMBERS["clip_range"]
    )
    value = value_loss(
        values[:, :-1], given["values"], given["returns"], mask, clip_range=NUMBERS["clip_range"]
    )
    (policy.loss + NUMBERS["value_coef"] * value.loss).backward()
    assert logits.grad is not None
    assert values.grad is not None
    difference = torch.where(mask, current.logprobs.detach() - given["logprobs"], 0.0)
    half_square = kl_estimate(difference, torch.zeros_like(difference), estimator="k2")
    share = count / mask.numel()
    entropy = current.entropy.detach()
    return [
        Row("masked mean", mean, trl["masked_mean"], FLOAT64, "`masked_mean`"),
        Row("whitened advantages", whiten(advantages, mask), whitened * bessel, 1e-7,
            "`masked_whiten`; × √(n/(n−1)): it divides by n − 1, we by n; 1e-8 under its root"),
        Row("whitened rewards", rescale(advantages, mask),
            torch.where(mask, (rescaled - mean) * bessel + mean, 0.0), 1e-7,
            "`masked_whiten(shift_mean=False)`; the same factor"),
        Row("policy loss", policy.loss.detach(), trl["pg_loss"], TEMPERATURE),
        Row("value loss", value.loss.detach(), trl["vf_loss"], FLOAT64, "on one mask"),
        Row("gradient to the logits", logits.grad, trl["logits_gradient"], TEMPERATURE),
        Row("gradient to the values", values.grad, trl["values_gradient"], FLOAT64),
        Row("clip fraction", policy.clip_fraction, trl["pg_clipfrac"], COUNTED),
        Row("value clip fraction", value.clip_fraction, trl["vf_clipfrac"], COUNTED),
        Row("approximate KL, as TRL logs it", half_square.mean(), trl["approxkl"], TEMPERATURE,
            f"defect 3: mean over the padding too, {share:.2f} times the mean over real tokens "
            f"({(masked_sum(half_square, mask) / count).item():.4f}); ½d² there, (r−1)−log r here"),
        Row("ratio, as TRL logs it", difference.exp().mean(), trl["ratio"], TEMPERATURE,
            f"defect 3: padding counts as 1; ours is {masked_mean(difference.exp(), mask):.4f}"),
        Row("entropy, as TRL logs it", entropy.mean(), trl["entropy"], TEMPERATURE,
            "defect 3: tokens behind the end count; ours is "
            f"{masked_mean(entropy, mask).item():.4f}"),
    ]  # fmt: skip


def compare_rewards(
    rollout: Rollout, given: dict[str, Tensor], trl: dict[str, Tensor]
) -> list[Row]:
    """Rewards, advantages and returns; TRL's extra slot behind the end is shown for what it is."""
    mask, values = given["response_mask"], given["values"]
    scores = penalise_missing_end(
        given["scores"], rollout.ended, penalty=NUMBERS["missing_end_penalty"]
    )
    full = mask.all(dim=1)
    rows: list[Row] = []
    estimators: tuple[KLEstimator, ...] = ("k1", "k3")
    for name in estimators:
        rewards = shape_rewards(
            scores, given["logprobs"], given["ref_logprobs"], mask,
            kl_coef=NUMBERS["kl_coef"], estimator=name,
        )  # fmt: skip
        rows += [
            Row(f"rewards of full-length responses, {name}", rewards[full],
                trl[f"{name}_rewards"][full], FLOAT64),
            Row(f"sum of a response's rewards, {name}", sequence_sums(rewards, mask),
                trl[f"{name}_rewards"].sum(dim=1), FLOAT64, "wherever the score stands"),
        ]  # fmt: skip
    ours = gae(rewards := shape_rewards(
        scores, given["logprobs"], given["ref_logprobs"], mask, kl_coef=NUMBERS["kl_coef"]
    ), values, mask, gamma=NUMBERS["gamma"], lam=NUMBERS["lam"])  # fmt: skip
    wide = ~trl["k1_padding_mask_p1"]
    theirs = gae(trl["k1_rewards"], values, wide, gamma=NUMBERS["gamma"], lam=NUMBERS["lam"])
    ended = mask & ~full.unsqueeze(1)
    gap = (ours.returns - trl["k1_returns"])[ended].abs().max().item()
    places = trl["k1_rewards"] - torch.where(mask, rewards, 0.0)
    behind = places[~full][~mask[~full]].abs().sum(dim=0).item()
    rows += [
        Row("returns of full-length responses", ours.returns[full],
            trl["k1_returns"][full], FLOAT64, "GAE"),
        Row("returns, with our GAE on TRL's layout", torch.where(wide, theirs.returns, 0.0),
            torch.where(wide, trl["k1_returns"], 0.0), FLOAT64,
            f"defect 2: for the {int((~full).sum())} responses that end early TRL puts the score "
            f"on the padding behind the end ({behind:.2f} in size there); on its own "
            f"layout the two agree, on ours their returns differ by up to {gap:.3f}"),
    ]  # fmt: skip
    return rows


def compare_ends(rollout: Rollout, trl: dict[str, Tensor]) -> list[Row]:
    """Peer defect 1: what TRL takes for a response when padding and end share an id."""
    lengths = last_token_index(rollout.response_mask) + 1
    lost = lengths - rollout.ended.long()
    return [
        Row("response lengths where pad equals end, as TRL sees them", lost,
            trl["first_pad_where_pad_is_end"], 0,
            f"defect 1: the end of {int(rollout.ended.sum())} responses is lost, to the loss and "
            "to the reward model; ours come from lengths, not from ids, and lose nothing"),
    ]  # fmt: skip
