"""The lines of the walk: one PPO step in seven numbered steps, and what a KL of 0 would change."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlhf.batches import Rollout
from rlhf.chat import decode_rows
from rlhf.kl import kl_estimate
from rlhf.masked import masked_mean, sequence_sums
from rlhf.params.ppo import PPOParams
from rlhf.ppo_metrics import UpdateMetrics
from rlhf.walkthrough.models import World
from rlhf.walkthrough.step import Step

WIDTH = 100
SHOWN = 10
"""Tokens of the response in the table."""
FAR = 0.5
"""Nats by which the policy must like a token more than the reference does to count as moved."""


def tell(world: World, step: Step) -> Iterator[str]:
    """The lines of the walk, at most 60 of at most 100 columns."""
    k1 = kl_estimate(step.rollout.logprobs, step.rollout.ref_logprobs, estimator="k1")
    row = _example(step.rollout.response_mask)
    yield "One PPO step: " + world.origin[0]
    yield from (f"    {line}" for line in world.origin[1:])
    yield from _sampling(world, step.rollout, row)
    yield from _scoring(world, step, row, k1)
    yield from _credit(world, step, row, k1)
    yield from _update(world, step.configured.metrics)
    yield from _consequences(step, k1)


def _sampling(world: World, rollout: Rollout, row: int) -> Iterator[str]:
    mask = rollout.response_mask
    prompt = decode_rows(world.tokenizer, rollout.prompt_ids[[row]], rollout.prompt_mask[[row]])[0]
    response = decode_rows(world.tokenizer, rollout.response_ids[[row]], mask[[row]])[0]
    temperature = world.params.sampling.temperature
    yield "1 PROMPTS     x: token ids, padded on the left; masks are True at real tokens"
    yield (
        f"    prompt_ids, prompt_mask {_shape(rollout.prompt_ids)}: "
        f"{int(rollout.prompt_mask.sum())} real tokens"
    )
    yield _cut(f"    prompt {row}: {prompt!r}")
    yield f"2 RESPONSES   y ~ π(·|x) at temperature {temperature:g}, padded right"
    yield (
        f"    response_ids, response_mask {_shape(rollout.response_ids)}: {int(mask.sum())} real "
        f"tokens; {int(rollout.ended.sum())} of {len(rollout)} end by themselves"
    )
    yield _cut(f"    response {row}: {response!r}")


def _scoring(world: World, step: Step, row: int, k1: Tensor) -> Iterator[str]:
    rollout = step.rollout
    kl = sequence_sums(k1, rollout.response_mask)
    rewards = world.params.rewards
    scorers = ["reward model"] * (rewards.learned > 0)
    scorers += ["rules (rlhf.rule_rewards)"] * bool(rewards.rules())
    yield f"3 SCORES      s(x, y), one per response, from the {' and the '.join(scorers)}"
    yield (
        f"    scores {_shape(rollout.scores)}: mean {rollout.scores.mean():+.3f}, of {row} "
        f"{rollout.scores[row]:+.3f}"
    )
    yield "4 KL          k1_t = log π(y_t) − log π_ref(y_t); summed over y it estimates KL(π‖π_ref)"
    yield (
        f"    logprobs, ref_logprobs {_shape(k1)}: KL in nats per response: mean {kl.mean():+.2f} "
        f"(exact {step.exact_kl.mean():.2f}), of {row} {kl[row]:+.2f}"
    )


def _credit(world: World, step: Step, row: int, k1: Tensor) -> Iterator[str]:
    params, done = world.params, step.configured
    sums = sequence_sums(done.rewards, step.rollout.response_mask)
    reward, total, where = f"−β·{params.kl_estimator}_t, and + s", "s − β·KL", ""
    if params.kl_in == "loss":
        reward, total, where = "0, but s", "s", f"; β·{params.kl_estimator} is in the loss"
    yield (
        f"5 REWARDS     r_t = {reward} (less penalties) at the last real token{where}; "
        f"β = {done.kl_coef:g}"
    )
    yield (
        f"    rewards {_shape(done.rewards)}: a response's sum is {total}: mean "
        f"{sums.mean():+.3f}, of {row} {sums[row]:+.3f}"
    )
    yield f"6 ADVANTAGES  {_formula(params)}"
    whitens = params.whiten_advantages and not params.compares_responses()
    whitened = "whitened: mean 0, variance 1" if whitens else "not whitened"
    yield (
        f"    values, advantages ({whitened}), returns (not) {_shape(done.batch.returns)}; of "
        f"response {row}:"
    )
    yield from _table(world, step, row, k1)


def _formula(params: PPOParams) -> str:
    """How the estimator makes advantages of rewards."""
    samples, value = params.samples_per_prompt, "no value function"
    match params.advantage:
        case "gae":
            return (
                "δ_t = r_t + γV_(t+1) − V_t; A_t = δ_t + γλA_(t+1); R_t = A_t + V_t; "
                f"γ = {params.gamma:g}, λ = {params.lam:g}"
            )
        case "rloo":
            return f"A = R − mean of the other {samples - 1} R to the prompt; R = Σ r_t; {value}"
        case "grpo":
            std = " / their std" if params.grpo_std else ""
            return f"A = (R − mean of the {samples} R to the prompt){std}; R = Σ r_t; {value}"
        case "reinforce_pp":
            return f"A_t = R_t = r_t + γR_(t+1); γ = {params.gamma:g}; {value}"


def _update(world: World, metrics: UpdateMetrics) -> Iterator[str]:
    params = world.params
    term, factor, loss = "", "", ""
    if metrics.value_loss is not None:
        term, factor = " + c/2·mean (V − R)²", f", c = {params.value_coef:g}"
        loss = f" value loss {metrics.value_loss:.4f},"
    yield (f"7 UPDATE      ρ_t = π/π_old(y_t); minimise mean max(−Aρ, −A·clip(ρ, 1−ε, 1+ε)){term}")
    yield (
        f"    ε = {params.clip_range:g}{factor}; {metrics.optimiser_steps:g} optimiser steps: "
        f"policy loss {metrics.policy_loss:+.4f},{loss}"
    )
    yield (
        f"    clipped {metrics.clip_fraction:.1%}, KL to the old policy "
        f"{metrics.approx_kl:.5f} per token, gradient norm {metrics.grad_norm:.3f}"
    )


def _table(world: World, step: Step, row: int, k1: Tensor) -> Iterator[str]:
    """The tokens of one response with all that the step knows of them."""
    rollout, batch = step.rollout, step.configured.batch
    columns = (
        rollout.logprobs,
        rollout.ref_logprobs,
        k1,
        step.configured.rewards,
        batch.old_values,
        batch.advantages,
        batch.returns,
        step.configured.logprobs - rollout.logprobs,
    )
    names = ("log π", "log π_ref", "k1", "reward", "value", "advantage", "return", "Δ log π")
    yield "    " + "token".ljust(13) + "".join(name.rjust(10) for name in names)
    real = int(rollout.response_mask[row].sum())
    half = SHOWN // 2
    for place in range(real):
        if real > SHOWN and half <= place < real - half:
            if place == half:
                yield f"    … {real - 2 * half} more"
            continue
        text = world.tokenizer.decode([int(rollout.response_ids[row, place])])
        values = "".join(f"{column[row, place].item():+10.3f}" for column in columns)
        yield "    " + repr(text)[:12].ljust(13) + values


def _consequences(step: Step, k1: Tensor) -> Iterator[str]:
    """The same rollout at the configured coefficient and at 0."""
    rollout, mask = step.rollout, step.rollout.response_mask
    far = mask & (k1 > FAR)
    share = far.sum() / mask.sum()
    outcomes = (step.configured, step.at_zero)

    def line(name: str, values: Sequence[Tensor], form: str) -> str:
        return (
            "    "
            + name.ljust(66)
            + "".join(f"{value.item():{form}}".rjust(14) for value in values)
        )

    yield "WHAT IF THE KL COEFFICIENT WERE ZERO? The same responses, scores and weights, twice:"
    yield "    " + " " * 66 + "".join(f"β = {outcome.kl_coef:g}".rjust(14) for outcome in outcomes)
    yield line(
        "sum of a response's rewards, mean (at 0: the score alone)",
        [sequence_sums(outcome.rewards, mask).mean() for outcome in outcomes],
        "+.3f",
    )
    if far.any():
        yield line(
            f"advantage of tokens that π likes {FAR} nats more than π_ref ({share:.0%})",
            [masked_mean(outcome.batch.advantages, far) for outcome in outcomes],
            "+.4f",
        )
        yield line(
            "the update moves their log π by",
            [masked_mean(outcome.logprobs - rollout.logprobs, far) for outcome in outcomes],
            "+.4f",
        )
    yield line(
        f"exact KL to the reference on these responses: {step.exact_kl.mean():.3f} before, after",
        [outcome.kl.mean() for outcome in outcomes],
        ".3f",
    )
    yield "    Without the penalty the score alone steers: nothing pulls back a token that has left"
    yield "    the reference, so step by step the text drifts to whatever the scorer likes."


def _example(mask: Tensor) -> int:
    """The response to show: the longest that fits the table, else the shortest."""
    lengths = mask.sum(dim=1)
    fitting = torch.where(lengths <= SHOWN, lengths, 0)
    return int(fitting.argmax() if fitting.any() else lengths.argmin())


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
