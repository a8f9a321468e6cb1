"""How the KL penalty is estimated and controlled."""

from dataclasses import dataclass
from typing import Literal

from rlhf.params.ranges import Count, Positive

KLEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveKLParams:
    """How the KL coefficient follows a target (Ziegler et al. 2019, section 2.2)."""

    target: Positive
    """Wanted KL to the reference, in nats per response (a sum over tokens, not a mean)."""
    horizon: Count
    """Episodes in which a KL far off the target changes the coefficient by about a fifth."""
