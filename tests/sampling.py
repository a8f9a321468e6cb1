"""Responses to all prompts of a test."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from rlhf.generation import in_order, sample_batches
from rlhf.params.sampling import SamplingParams


def sample_all(
    lm: PreTrainedModel, prompts: Sequence[Sequence[int]], params: SamplingParams, **settings: Any
) -> list[list[int]]:
    """In the order of the prompts; `settings` are those of `sample_batches`."""
    return in_order(sample_batches(lm, prompts, params, **settings), len(prompts))
