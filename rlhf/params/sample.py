"""The fresh pairs of a round."""

from dataclasses import dataclass, field

from rlhf.params.ranges import Count, Fraction
from rlhf.params.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParams:
    """Fresh pairs of responses for each round."""

    pairs: Count = 3000
    """Pairs per round; identical responses are drawn again, then left out."""
    against_sft: Fraction = 0.1
    """Share of pairs between the policy and SFT; the rest is the policy against itself. From the
    second round on SFT's responses in them set the scale of scores, so there should be dozens."""
    batch_size: Count = 256
    """Prompts answered at a time."""
    max_prompt_tokens: Count = 96
    """Longer prompts are left out and counted."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
