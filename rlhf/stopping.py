"""What ends a PPO round before it does harm.

Each check raises `TrainingStopped` with what was found and, where one can be named, what to try.
"""

import math
from collections.abc import Mapping

from rlhf.params.ppo import PPOParams


class TrainingStopped(RuntimeError):
    """Training ended itself, since going on would do harm; the message says why."""


def check_kl(kl: float, iteration: int, params: PPOParams) -> None:
    """The mean KL per answer of a rollout, in nats: finite, and not below minus the alarm."""
    if not math.isfinite(kl):
        raise TrainingStopped(f"iteration {iteration + 1}: the KL to the reference is {kl}")
    if kl < -params.kl_alarm:
        raise TrainingStopped(
            f"iteration {iteration + 1}: the mean KL per answer is {kl:.2f} nats, below "
            f"-{params.kl_alarm}: a KL cannot be this negative unless answers are sampled and "
            "scored differently (temperature, masks or weights)"
        )


def check_first_ratio(figures: Mapping[str, float], iteration: int) -> None:
    """Before the first step of an update nothing has moved: ratio 1, KL 0, nothing clipped."""
    if abs(figures["ratio"] - 1) > 1e-3 or figures["approx_kl"] > 1e-4:
        raise TrainingStopped(
            f"self-check 'first ratio is 1' failed in iteration {iteration + 1}: ratio "
            f"{figures['ratio']:.6f}, approximate KL {figures['approx_kl']:.2e}"
        )
