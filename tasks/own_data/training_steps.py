"""Whether so many rows make enough optimiser steps for a training's warm-up.

The presets for GPUs are made for thousands of rows. With some hundred of one's own the rate would
never arrive where the preset has it, and the model would stay what it was.
"""

from collections.abc import Iterator

from rlhf.params.reward import RewardParams
from rlhf.params.sft import SFTParams
from tasks.params.loading import Params

LARGEST_SHARE = 0.5
"""Of a training's steps that may be warm-up; published recipes take 0.03 to 0.1."""


def step_notes(params: Params, demonstrations: int, pairs: int | None) -> Iterator[str]:
    """Trainings that are mostly warm-up, or over before it is.

    Args:
        params: of the run.
        demonstrations: how many there are, with those that will be held out.
        pairs: initial preferences to train on, None where not all are here to be counted; those
            that a round adds are counted here.
    """
    sft = round(demonstrations * (1 - params.sft.heldout_fraction))
    yield from _notes("sft", params.sft, sft, "demonstrations")
    if params.reward.model is not None or pairs is None:
        return
    if params.label.annotators != "none":
        pairs += round(params.sample.pairs * (1 - params.validate.heldout_fraction))
    yield from _notes("reward", params.reward, pairs, "pairs of the first round")


def _notes(section: str, params: SFTParams | RewardParams, rows: int, what: str) -> Iterator[str]:
    """The note on one training; none where there are no rows, which others report."""
    steps = params.epochs * -(-rows // params.batch_size)
    warmup = params.optimiser.warmup_steps
    if steps and warmup > LARGEST_SHARE * steps:
        reached = "is reached late" if warmup <= steps else "is never reached"
        yield (
            f"{section}.optimiser.warmup_steps: {warmup}, but about {rows} {what} make {steps} "
            f"steps, so {section}.optimiser.lr ({params.optimiser.lr:g}) {reached}; lower it to a "
            f"tenth of the steps, and lower {section}.batch_size or raise {section}.epochs for "
            "more of them"
        )
