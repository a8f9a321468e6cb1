"""By how many responses the scores of later rounds are scaled (`tasks.scoring.normaliser`)."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rlhf.params.reward import NO_MODEL, RewardParams
from rlhf.params.sample import SampleParams

STEADY = 24
"""Fewest responses that set a scale without a note: a deviation of so many is right within 15 % in
two of three cases, and of three within 50 %."""


class Scale(NamedTuple):
    """What scales a reward model's scores to mean 0 and deviation 1."""

    round_key: str
    """The first round in which SFT writes only a part of the responses."""
    responses: int
    """Of SFT, in the pairs of that round."""


def scale_of(sample: SampleParams, reward: RewardParams, rounds: Mapping[str, Any]) -> Scale | None:
    """None where no round fits a scale to a part of its responses; those of SFT's own all are."""
    if reward.model == NO_MODEL:
        return None
    always = reward.retrain or reward.model is not None
    for key, each in rounds.items():
        if each.policy != "models/sft" and (always or each.reward_model == "models/sft"):
            return Scale(key, round(sample.pairs * sample.against_sft))
    return None


def scale_notes(
    sample: SampleParams, reward: RewardParams, rounds: Mapping[str, Any]
) -> Iterator[str]:
    """What so few responses do to scores, and with them to the weight of the KL penalty."""
    scale = scale_of(sample, reward, rounds)
    if scale is None or scale.responses >= STEADY:
        return
    ways = [f"sample.pairs to {math.ceil(STEADY / sample.against_sft)}"]
    if sample.pairs >= STEADY:
        ways.insert(0, f"it to {math.ceil(STEADY / sample.pairs * 100) / 100:g}")
    yield (
        f"sample.against_sft: {sample.against_sft:g} of {sample.pairs} pairs has "
        f"{scale.responses} of SFT's responses, which set the scale of scores in {scale.round_key} "
        "and later rounds; by so few it is a matter of chance, and with it what ppo.kl_coef "
        f"weighs: raise {' or '.join(ways)}"
    )
