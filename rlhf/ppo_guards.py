"""Checks of each rollout and each update's first step, to stop a PPO round before it does harm.

Each raises an error with the iteration, what was found and what to try.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rlhf.batches import Rollout
from rlhf.masked import keep, noise_floors
from rlhf.params.ppo import PPOParams
from rlhf.reward_shaping import penalise_length
from rlhf.stopping import NonFiniteError, SelfCheckError, TrainingStopped


@dataclass
class Flat:
    """What is known of a round's rollouts whose responses all have one score."""

    in_a_row: int = 0
    """Such rollouts up to now, without another between them."""
    first_score: float | None = None
    """The mean of the round's first rollout, less the price of length."""

    def take(self, rollout: Rollout, params: PPOParams) -> None:
        """Count one more rollout."""
        self.in_a_row = self.in_a_row + 1 if is_flat(rollout, params) else 0
        if self.first_score is None:
            self.first_score = priced_scores(rollout, params).mean().item()


SOURCES: Mapping[str, str] = {
    "logprobs": "the policy's log-probabilities",
    "ref_logprobs": "the reference's log-probabilities",
    "values": "the values",
    "scores": "the scores",
}


def check_finite(rollout: Rollout, iteration: int) -> None:
    """Every model's outputs at the real tokens are finite."""
    mask = rollout.response_mask
    for name, what in SOURCES.items():
        tensor = getattr(rollout, name)
        kept = tensor if tensor.ndim == 1 else keep(tensor, mask)
        bad = int((~kept.isfinite()).sum())
        if bad:
            raise NonFiniteError(
                f"iteration {iteration + 1}: {what} are not all finite ({bad} of "
                f"{len(kept) if kept.ndim == 1 else int(mask.sum())}); no weight was changed. "
                "Check the weights of their model; try a lower learning rate or float32"
            )


def check_kl(kl: float, iteration: int, params: PPOParams) -> None:
    """The mean k1 per response of a rollout, in nats: above minus the alarm, below the limit."""
    where = f"iteration {iteration + 1}: the mean KL per response is {kl:.2f} nats"
    if not math.isfinite(kl):
        raise NonFiniteError(f"{where}; no weight was changed")
    if kl < -params.kl_alarm:
        raise TrainingStopped(
            f"{where}, below -{params.kl_alarm} (kl_alarm): a KL cannot be this negative unless "
            "responses are sampled and scored differently (temperature, masks or weights)"
        )
    if params.kl_limit is not None and kl > params.kl_limit:
        raise TrainingStopped(
            f"{where}, above {params.kl_limit} (kl_limit): the policy is too far from the "
            "reference. Try a higher kl_coef, a lower learning rate, or kl_budget to end the round "
            "in time"
        )


def priced_scores(rollout: Rollout, params: PPOParams) -> Tensor:
    """Scores (batch,) less the price of length: among right answers the short ones are better."""
    return penalise_length(rollout.scores, rollout.response_mask, per_token=params.length_penalty)


def is_flat(rollout: Rollout, params: PPOParams) -> bool:
    """Whether all responses have one score: nothing can be learnt from them.

    Where the responses to a prompt are compared, all responses to the same prompt.
    """
    scores = priced_scores(rollout, params)
    if len(scores) == 1:
        return False
    groups = params.samples_per_prompt if params.compares_responses() else len(scores)
    compared = scores.view(-1, groups)
    spreads = compared.var(dim=1, unbiased=False, keepdim=True)
    return bool((spreads <= noise_floors(compared)).all())


def end_of_flat(rollout: Rollout, flat: Flat, done: int, params: PPOParams) -> str | None:
    """Why the round ends once so many rollouts in a row were flat; None where it goes on.

    Scores that differed at first, and are higher now, are those of a policy that has learnt what
    there was: it is kept.

    Args:
        rollout: the newest.
        flat: what is known of it and of those before.
        done: iterations, this one included.
        params: of the round.

    Raises:
        TrainingStopped: nothing was learnt, or what was learnt is lost.
    """
    if params.flat_rollouts is None or flat.in_a_row < params.flat_rollouts:
        return None
    grouped, score = params.compares_responses(), priced_scores(rollout, params).mean().item()
    same = "the same score as the others to its prompt" if grouped else "the same score"
    found = f"the last {flat.in_a_row} rollouts gave every response {same} ({score:.4g})"
    assert flat.first_score is not None
    if flat.in_a_row < done and score > flat.first_score:
        if done == params.iterations:
            return None
        return (
            f"{found}, {flat.first_score:.4g} in the first: nothing is left to learn "
            f"(flat_rollouts); PPO ends after {done} of {params.iterations} iterations"
        )
    raise TrainingStopped(
        f"iteration {done}: {found}, so there is nothing to learn (flat_rollouts). Try another "
        "reward (model, function or rule), a higher sampling temperature or a larger "
        f"{'samples_per_prompt' if grouped else 'rollout_size'}"
    )


def check_first_step(metrics: Mapping[str, float], iteration: int) -> None:
    """Before the first step of an update nothing has moved: ratio 1, KL 0, nothing clipped."""
    if (
        not abs(metrics["ratio"] - 1) <= 1e-3
        or not metrics["approx_kl"] <= 1e-4
        or metrics["clip_fraction"] > 0
    ):
        raise SelfCheckError(
            f"self-check 'first ratio is 1' failed in iteration {iteration + 1}: ratio "
            f"{metrics['ratio']:.6f}, approximate KL {metrics['approx_kl']:.2e}, clip fraction "
            f"{metrics['clip_fraction']:.2e}"
        )


def check_losses(metrics: Mapping[str, float], iteration: int) -> None:
    """The losses and metrics of an optimiser step are finite."""
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    if bad:
        raise NonFiniteError(
            f"iteration {iteration + 1}: {', '.join(f'{k} is {v}' for k, v in bad.items())}; no "
            "weight was changed in this step. Try a lower learning rate, value_coef or score_clip"
        )
