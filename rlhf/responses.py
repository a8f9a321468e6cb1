"""Responses of a policy to many prompts, each with draws of its own."""

from collections.abc import Iterator, Sequence

from transformers import PreTrainedModel

from rlhf.compute import Compute
from rlhf.draws import draw_table
from rlhf.generation import in_order, sample_batches
from rlhf.params.sampling import SamplingParams
from rlhf.special_ids import SpecialIds


def respond(
    policy: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    tokens: SpecialIds,
    *,
    batch_size: int,
    compute: Compute,
    seed: int,
) -> list[list[int]]:
    """One sampled response per prompt as token ids, the stop id kept.

    The draws depend on the seed and the prompts alone: policies that respond with the same seed are
    paired, and equal ones give equal responses.
    """
    batches = response_batches(
        policy, prompts, sampling, tokens, batch_size=batch_size, compute=compute, seed=seed
    )
    return in_order(batches, len(prompts))


def response_batches(
    policy: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    tokens: SpecialIds,
    *,
    batch_size: int,
    compute: Compute,
    seed: int,
) -> Iterator[list[list[int]]]:
    """The same batch by batch, as `rlhf.generation.in_order` takes them."""
    with compute.autocast():
        yield from sample_batches(
            policy,
            prompts,
            sampling,
            stop_ids=tokens.stops,
            pad_id=tokens.pad,
            batch_size=batch_size,
            draws=draw_table(seed, prompts, sampling.max_new_tokens),
        )
