"""The settings of a PPO round, and the combinations that make no sense."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlhf.params.kl import AdaptiveKLParams, KLEstimator
from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ranges import Count, CountOrZero, Fraction, NonNegative, OpenFraction, Positive
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.params.sampling import SamplingParams

LEFT_OUT: Mapping[str, int | None] = {
    "value_warmup_iterations": 0,
    "value_epochs": None,
    "value_clip_range": None,
    "value_huber_delta": None,
}
"""Keys that change how a value function is trained, and what leaves it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOParams:
    """One PPO round (Schulman et al. 2017; Ziegler et al. 2019 for its use on language models)."""

    iterations: CountOrZero = 14
    """Rollouts, each followed by an update."""
    rollout_size: Count = 128
    """Responses per rollout."""
    samples_per_prompt: Count = 1
    """Responses to each prompt of a rollout, which then has rollout_size / samples_per_prompt
    prompts; rloo and grpo compare them and need 2 or more."""
    epochs: Count = 1
    """Passes over each rollout."""
    minibatches: Count = 4
    """Optimiser steps per pass."""
    micro_batch_size: Count = 16
    """Responses per forward pass; changes memory, never the gradient."""
    recompute_layers: bool = False
    """Compute the activations of each layer again in the backward pass instead of keeping them: a
    fraction of the memory for a third more time; changes no weight."""
    packing: bool = False
    """Put several prompts with their responses in a row, none of which sees another, in scoring and
    in the update; changes speed, never the gradient."""
    max_prompt_tokens: Count = 96
    """Longer prompts are left out and counted."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Of the rollouts. `top_k`, `top_p` and `min_new_tokens` stay 0, 1 and 0: PPO scores the very
    distribution that it samples from."""
    rollouts: Literal["local", "server"] = "local"
    """Who samples: the stage itself, exactly repeatable, or a server that it starts anew with the
    policy's weights for each rollout (vLLM; docs/how-to/responses-from-a-server.md)."""
    importance_cap: Positive = 2.0
    """Largest importance weight of a token that a server has sampled (Yao et al. 2025)."""
    lora: LoraParams | None = None
    """Train low-rank adapters of the policy, which with them off is its own reference, and merge
    them in the end; a separate value model is trained whole. null trains all weights."""
    optimiser: OptimiserParams = field(
        default_factory=lambda: OptimiserParams(lr=4e-4, schedule="constant", warmup_steps=12)
    )
    """Of the policy (and the shared trunk)."""
    value_optimiser: OptimiserParams = field(
        default_factory=lambda: OptimiserParams(lr=1e-3, schedule="constant", warmup_steps=0)
    )
    """Of the value head and the separate value trunk."""
    value_model: Literal["shared", "separate"] = "separate"
    """Whether the value function has a trunk of its own."""
    value_init: Literal["zero", "reward"] = "reward"
    """Start the value function at 0 or, with a separate trunk, at the reward model's score (of an
    ensemble, that of its first member)."""
    value_carry: bool = True
    """A round that starts from a policy of PPO continues with its value function, too."""
    value_warmup_iterations: CountOrZero = 0
    """Rollouts at the start that train the value function only; fewer than `iterations`."""
    value_epochs: Count | None = None
    """Passes of the value function over each rollout; null means as many as the policy's."""
    kl_coef: NonNegative = 0.04
    """Penalty per nat of KL to the reference."""
    kl_in: Literal["reward", "loss"] = "reward"
    """Subtract the penalty from each token's reward, or add its mean per token to the loss."""
    kl_estimator: KLEstimator = "k1"
    """Per-token estimator of the penalty; in the loss k2 or k3 (Tang & Munos 2025), never k1."""
    kl_adaptive: AdaptiveKLParams | None = None
    """Ziegler's controller on nats per response; null keeps `kl_coef` fixed."""
    kl_budget: Positive | None = None
    """End the round when a rollout's mean KL per response is above this many nats."""
    kl_alarm: Positive = 1.0
    """Stop when the mean k1 per response is below minus this: sampling and scoring then differ."""
    kl_limit: Positive | None = None
    """Stop with an error when a rollout's mean KL per response is above this many nats."""
    flat_rollouts: Count | None = 3
    """End after so many rollouts in a row that give every response one score: with an error, unless
    scores had differed and are higher than in the first rollout; null never does."""
    target_approx_kl: Positive | None = None
    """Skip the rest of an update when a pass moves the policy further than this per token."""
    advantage: Literal["gae", "rloo", "grpo", "reinforce_pp"] = "gae"
    """Estimator of the advantage (`rlhf/advantages.py`). All but gae do without a value function:
    none is built or saved, and value_model, value_init, value_carry, value_optimiser, value_coef
    and lam mean nothing."""
    grpo_std: bool = True
    """grpo: divide by the standard deviation of the responses to the prompt (Shao et al. 2024);
    false leaves it out (Liu et al. 2025)."""
    gamma: Fraction = 1.0
    """Discount per token; 1 for rloo and grpo, to which a response is one action."""
    lam: Fraction = 0.95
    """Decay of generalised advantage estimation."""
    whiten_advantages: bool = True
    """gae and reinforce_pp: advantages to mean 0 and variance 1 over the rollout."""
    whiten_rewards: bool = False
    """Rewards to variance 1 over the rollout, their mean kept."""
    advantage_clip: Positive | None = None
    """Clip (whitened) advantages to plus or minus this; null for none."""
    rewards: RewardMixParams = field(default_factory=RewardMixParams)
    """What the score of a response is made of, before clipping and penalties."""
    score_clip: Positive | None = None
    """Clip scores to plus or minus this."""
    missing_end: Literal["subtract", "replace"] = "subtract"
    """What happens to the score of a response that was cut at the length limit."""
    missing_end_penalty: NonNegative = 1.0
    """Subtracted from the score, or its replacement with a minus sign."""
    length_penalty: NonNegative = 0.0
    """Subtracted from the score per response token."""
    clip_range: Positive = 0.2
    """The ratio's gain ends at 1 plus or minus this."""
    dual_clip: Positive | None = None
    """Cap of the loss at this multiple of a negative advantage (Ye et al. 2020); above 1."""
    value_clip_range: Positive | None = None
    """Clip of the value's change per rollout; null for none."""
    value_huber_delta: Positive | None = None
    """Value errors beyond this count linearly (Huber 1964); null squares them all."""
    value_coef: NonNegative = 0.5
    """Weight of the value loss."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    start_sft: Fraction = 0.0
    """Share of SFT in the weights that training starts from, mixed into those that the round names
    (`rounds.<key>.start`): 0.5 is halfway back to SFT."""
    average_decay: OpenFraction | None = None
    """Publish an average of the policy's weights after each iteration (0.8: each counts 0.8 times
    as much as the next); null publishes the last weights."""

    def has_value_function(self) -> bool:
        """Whether the estimator of the advantage needs one."""
        return self.advantage == "gae"

    def compares_responses(self) -> bool:
        """Whether the advantage of a response comes from the others to its prompt."""
        return self.advantage in ("rloo", "grpo")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Impossible combinations, as (key, what is wrong)."""
        if not self.sampling.is_plain():
            yield (
                "sampling",
                (
                    "top_k, top_p and min_new_tokens must be 0, 1 and 0 for PPO: it must score the "
                    "very distribution that it samples from"
                ),
            )
        if self.kl_in == "loss" and self.kl_estimator == "k1":
            yield (
                "kl_estimator",
                (
                    "must be k2 or k3 where kl_in is loss: the gradient of k1 has mean 0, so it "
                    "would hold nothing back"
                ),
            )
        if self.kl_adaptive is not None and self.kl_coef == 0:
            yield "kl_adaptive", "multiplies kl_coef, which is 0 and stays so; start above 0"
        yield from self._update_problems()
        yield from self._advantage_problems()
        yield from self._value_problems() if self.has_value_function() else self._left_over()
        yield from ((f"rewards.{key}", text) for key, text in self.rewards.problems())

    def _update_problems(self) -> Iterator[tuple[str, str]]:
        if self.rollout_size % self.minibatches:
            yield (
                "minibatches",
                (
                    f"rollout_size {self.rollout_size} cannot be cut into {self.minibatches} equal "
                    "minibatches"
                ),
            )
        if self.importance_cap < 1:
            yield (
                "importance_cap",
                f"must be 1 or more, so that a server that computes as the stage does changes "
                f"nothing, found {self.importance_cap}",
            )
        if (self.kl_limit or math.inf) <= (self.kl_budget or 0):
            yield (
                "kl_limit",
                f"{self.kl_limit} must be above kl_budget ({self.kl_budget}), which ends first",
            )
        if self.average_decay is not None and self.lora is not None:
            yield (
                "average_decay",
                "impossible with lora: a mean of merged adapters is no adapter that the next round "
                "could train further; take null",
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            yield "dual_clip", f"must be above 1, found {self.dual_clip}"

    def _advantage_problems(self) -> Iterator[tuple[str, str]]:
        if self.rollout_size % self.samples_per_prompt:
            yield (
                "samples_per_prompt",
                f"rollout_size {self.rollout_size} cannot be cut into prompts with "
                f"{self.samples_per_prompt} responses each",
            )
        if self.compares_responses():
            if self.samples_per_prompt < 2:
                yield (
                    "samples_per_prompt",
                    f"must be 2 or more for {self.advantage}, which compares the responses to a "
                    f"prompt, found {self.samples_per_prompt}",
                )
            if self.gamma != 1:
                yield (
                    "gamma",
                    f"must be 1 for {self.advantage}, to which a response is one action, found "
                    f"{self.gamma}",
                )
            if self.whiten_rewards:
                yield (
                    "whiten_rewards",
                    f"impossible with {self.advantage}, which sees the sum of a response's "
                    "rewards: the mean that each token keeps would pay for length",
                )
        if self.advantage != "grpo" and not self.grpo_std:
            yield "grpo_std", f"false means nothing to {self.advantage}; take true"

    def _left_over(self) -> Iterator[tuple[str, str]]:
        """What asks for something of a value function that is not there."""
        for key, default in LEFT_OUT.items():
            found = getattr(self, key)
            if found != default:
                yield (
                    key,
                    f"{found} needs a value function, and {self.advantage} has none; take "
                    f"{'null' if default is None else default}",
                )

    def _value_problems(self) -> Iterator[tuple[str, str]]:
        if self.value_init == "reward" and self.value_model == "shared":
            yield (
                "value_init",
                (
                    "reward needs value_model: separate; the reward model's head means nothing on "
                    "the policy's trunk, whose hidden states it was never trained on"
                ),
            )
        if self.value_epochs is not None and self.value_epochs < self.epochs:
            yield (
                "value_epochs",
                (
                    f"{self.value_epochs} is below epochs ({self.epochs}); the value function is "
                    "trained at least as often as the policy"
                ),
            )
        if 0 < self.iterations <= self.value_warmup_iterations:
            yield (
                "value_warmup_iterations",
                f"{self.value_warmup_iterations} of {self.iterations} iterations would leave none "
                "that trains the policy",
            )
        if self.rewards.learned == 0 and self.value_init == "reward":
            yield "value_init", "reward needs a reward model, and rewards.learned is 0; take zero"
