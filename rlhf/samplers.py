"""Who samples a rollout in the policy's place: a server of its weights, which rounds otherwise."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from rlhf.distributed import gather, gather_rows, rank
from rlhf.generation import Responses
from rlhf.padding import pad_right
from rlhf.params.sampling import SamplingParams
from rlhf.shapes import Draws, PerToken


class SampledElsewhere(NamedTuple):
    """Responses to the prompts, in their order."""

    ids: list[list[int]]
    """Of each response, with the stop id that ended it, if one did."""
    logprobs: list[list[float]]
    """Of each id under the distribution that it was drawn from, in nats; NaN where nobody said."""


Sampler = Callable[
    [PreTrainedModel, Sequence[Sequence[int]], SamplingParams, Draws], SampledElsewhere
]
"""Samples a response to each prompt with the weights that the policy has now."""


class FromSampler(NamedTuple):
    """What a sampler gave, as tensors."""

    responses: Responses
    logprobs: PerToken
    """NaN in the padding, too."""


def ask(
    sampler: Sampler,
    lm: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    draws: Draws,
    *,
    stop_ids: Sequence[int],
    pad_id: int,
) -> FromSampler:
    """Responses to all prompts; of several processes the first asks, and all have the answer."""
    found = SampledElsewhere([], [])
    if rank() == 0:
        found = sampler(lm, prompts, sampling, draws)
    rows = gather_rows(found.ids)
    ids, mask = pad_right(rows, pad_id)
    told = gather(torch.tensor([number for row in found.logprobs for number in row]))
    logprobs = torch.full(ids.shape, torch.nan)
    logprobs[mask] = told
    ended = torch.tensor([row[-1] in stop_ids for row in rows])
    device = next(lm.parameters()).device
    responses = Responses(*(tensor.to(device) for tensor in (ids, mask, ended)))
    return FromSampler(responses, logprobs.to(device))
