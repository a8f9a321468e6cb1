"""The metrics of PPO: what an update measures, and what an iteration adds to it.

A metric is one field of a dataclass here, with the name of its curve (those that OpenAI's code
gave them) and its column of `history.csv`. Whatever computes it gives it to that field; files,
MLflow and report take all fields there are.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPONENTS: Mapping[str, str] = {
    "learned": "objective/learned",
    "length": "objective/rule_length",
    "relevance": "objective/rule_relevance",
    "format": "objective/rule_format",
    "sentiment": "objective/rule_sentiment",
    "function": "objective/rule_function",
}
"""What a mixed score is made of, before the weights."""


def curve(name: str, column: int, default: Any = dataclasses.MISSING) -> Any:
    """A field that is drawn as `name` and stands in this column of `history.csv`, from 1."""
    return dataclasses.field(metadata={"curve": name, "column": column}, default=default)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetrics:
    """Means over the optimiser steps of an update.

    What is not measured is None, and then no curve: what concerns the policy where only the values
    train, and a value function where there is none.
    """

    entropy: float | None = curve("objective/entropy", 5, default=None)
    policy_loss: float | None = curve("policy/loss", 9, default=None)
    approx_kl: float | None = curve("policy/approx_kl", 10, default=None)
    clip_fraction: float | None = curve("policy/clip_fraction", 11, default=None)
    ratio: float | None = curve("policy/ratio", 12, default=None)
    grad_norm: float | None = curve("policy/grad_norm", 13, default=None)
    value_loss: float | None = curve("value/loss", 14, default=None)
    value_clip_fraction: float | None = curve("value/clip_fraction", 15, default=None)
    value_grad_norm: float | None = curve("value/grad_norm", 17, default=None)
    kl_loss: float = curve("policy/kl_loss", 18, default=0.0)
    """The mean KL per token in the loss; 0 where it is in the reward."""
    optimiser_steps: int = curve("optimiser_steps", 19)
    skipped_passes: int = curve("skipped_passes", 20)
    """Passes that `target_approx_kl` left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOMetrics(UpdateMetrics):
    """One iteration: a rollout and its update. KL and lengths are per response, KL in nats."""

    score: float = curve("objective/score", 1)
    kl: float = curve("objective/kl", 2)
    kl_coef: float = curve("objective/kl_coef", 3)
    reward: float = curve("objective/reward", 4)
    length: float = curve("objective/length", 6)
    finished: float = curve("objective/finished", 7)
    clipped_scores: float = curve("objective/clipped_scores", 8)
    explained_variance: float | None = curve("value/explained_variance", 16, default=None)
    tokens: int = curve("tokens", 21)
    sampler_gap: float | None = curve("policy/sampler_gap", 22, default=None)
    """Mean difference of a token's log-probability here and at the server that sampled it, in nats;
    None, and then no curve, where the policy itself samples. So is what follows."""
    truncated_weights: float | None = curve("policy/truncated_weights", 23, default=None)
    """Share of tokens whose importance weight was truncated."""
    components: Mapping[str, float]
    """Means of what a mixed score is made of, before the weights; empty for a learned score."""

    def curves(self) -> dict[str, float]:
        """Curve -> value of those there are, in the order of the columns; components come last."""
        fields = [field for field in dataclasses.fields(self) if "curve" in field.metadata]
        fields.sort(key=lambda field: int(field.metadata["column"]))
        named = {field.metadata["curve"]: getattr(self, field.name) for field in fields}
        there = {name: value for name, value in named.items() if value is not None}
        return there | {COMPONENTS[name]: mean for name, mean in self.components.items()}
