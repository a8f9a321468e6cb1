"""Best-of-n from SFT, the baseline of PPO."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from rlhf.params.ranges import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfNParams:
    """Best-of-n from SFT, the baseline of PPO. How responses are drawn is `evaluate.sampling`."""

    prompts: Annotated[int, Ge(2)] = 128
    """Held-out prompts, the first of those that `evaluate` measures."""
    samples: Count = 64
    """Responses of SFT to each prompt; the largest n."""
    batch_size: Count = 512
    """Responses sampled at a time."""
