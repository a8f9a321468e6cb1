"""Rollouts: responses of the policy with everything PPO needs to know about them, computed once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from rlhf.actor_critic import ActorCritic
from rlhf.batches import HostMasks, Rollout
from rlhf.compute import Compute, sent
from rlhf.distributed import gather, share, world
from rlhf.generation import Responses, sample_responses
from rlhf.head_products import keeping_casts
from rlhf.logits import before_response
from rlhf.lora import adapter_off
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from rlhf.reward_models import RewardModel
from rlhf.samplers import Sampler, ask
from rlhf.shapes import (
    Draws,
    PerSequenceFlag,
    PerToken,
    PromptIds,
    PromptMask,
    ResponseIds,
    ResponseMask,
)
from rlhf.special_ids import SpecialIds
from rlhf.token_chunks import chunked_logprobs


class PPOModels(NamedTuple):
    """The models of a PPO round."""

    actor: ActorCritic
    """Policy and, where it has one, value function; the only one that is trained."""
    reference: PreTrainedModel
    """The policy that KL is measured to (SFT): with LoRA the policy itself, its adapter off."""
    reward_model: RewardModel | None
    """None where rules alone give the score; the rollout's scores are then 0."""
    sampler: Sampler | None = None
    """Who samples in the actor's place, with its weights; None: the actor itself."""


class MicroBatches(NamedTuple):
    """Which rows of a rollout are scored together: those of similar length, for little padding.

    The shape of a batch decides in which order products are summed. In float32 that moves a
    log-probability by 1e-6, in bfloat16 by as much as 0.1. There the update's first minibatches are
    scored each in the micro-batches that will train it, so that its first ratios are exactly 1.
    """

    size: int
    minibatches: Sequence[torch.Tensor] | None = None
    """Rows that are together in the update; None: all of them."""
    packing: bool = False
    """Several sequences in a row, in which no padding is computed."""

    def of(self, lengths: torch.Tensor) -> list[torch.Tensor]:
        """Indices of the rows of each micro-batch of this process, from every row's length."""
        groups = self.minibatches or [torch.arange(len(lengths))]
        ordered = [share(rows[lengths[rows].argsort(stable=True)]) for rows in groups]
        return [part for rows in ordered for part in rows.split(self.size)]


@torch.no_grad()
def collect_rollout(
    models: PPOModels,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    tokens: SpecialIds,
    *,
    micro_batches: MicroBatches,
    compute: Compute,
    draws: Draws,
) -> Rollout:
    """Sample one response per prompt and score it.

    Log-probabilities come from a forward pass like the one that trains, not from decoding, so that
    the first ratio of the update is 1. The reward model reads the ids the policy emitted, with the
    one end that it was trained with. `draws` has a row for each prompt (`rlhf.draws`). Of several
    processes each samples and scores its share of the prompts, and has the rollout of all. Another
    sampler is asked for all of them once.
    """
    ids, mask = pad_left(prompts, tokens.pad)
    padded = ids.to(compute.device), mask.to(compute.device)
    # One context for all of it: within it the policy's weights are cast once.
    with compute.autocast(), keeping_casts():
        responses, told = _sampled(models, prompts, padded, sampling, tokens, draws)
        # The last wait for the device until all is scored.
        masks = HostMasks(prompt=mask, response=responses.response_mask.cpu())
        together = micro_batches.of(masks.lengths())
        parts = []
        for rows in together:
            there = sent(rows, compute.device)
            chosen = Responses(*(tensor[there] for tensor in responses))
            asked = padded[0][there], padded[1][there]
            of_rows, packing = masks.select(rows), micro_batches.packing
            part = _score(models, asked, chosen, of_rows, sampling, eos=tokens.eos, packing=packing)
            parts.append(part)
    order = sent(gather(torch.cat(together)).argsort(), compute.device)
    rollout = Rollout.concat(parts).of_all_processes().select(order)
    if told is None:
        return rollout
    known = torch.where(told.isnan(), rollout.logprobs, told)
    return replace(rollout, sampler_logprobs=known)


def each_repeated(prompts: Sequence[Sequence[int]], times: int) -> list[Sequence[int]]:
    """Every prompt as often as it is to be answered, its copies one behind the other."""
    return [prompt for prompt in prompts for _ in range(times)]


def _sampled(
    models: PPOModels,
    prompts: Sequence[Sequence[int]],
    padded: tuple[PromptIds, PromptMask],
    sampling: SamplingParams,
    tokens: SpecialIds,
    draws: Draws,
) -> tuple[Responses, PerToken | None]:
    """The responses of all processes, and their log-probabilities where another sampler says."""
    lm, stops, pad = models.actor.lm, tokens.stops, tokens.pad
    if models.sampler is not None:
        return ask(models.sampler, lm, prompts, sampling, draws, stop_ids=stops, pad_id=pad)
    ids, mask = (share(part) for part in padded)
    responses = sample_responses(
        lm, ids, mask, sampling, stop_ids=stops, pad_id=pad, draws=share(draws)
    )
    return _of_all(responses, len(prompts), pad), None


def _of_all(responses: Responses, count: int, pad_id: int) -> Responses:
    """The responses that all processes have sampled, in the order of the prompts."""
    if world() == 1:
        return responses
    ids, mask, ended = responses
    width = int(gather(torch.tensor([ids.shape[1]])).amax())
    missing = (0, width - ids.shape[1])
    order = gather(share(torch.arange(count, device=ids.device))).argsort()
    ids, mask = functional.pad(ids, missing, value=pad_id), functional.pad(mask, missing)
    return Responses(*(gather(part)[order] for part in (ids, mask, ended)))


def _score(
    models: PPOModels,
    prompts: tuple[PromptIds, PromptMask],
    responses: Responses,
    masks: HostMasks,
    sampling: SamplingParams,
    *,
    eos: int,
    packing: bool,
) -> Rollout:
    """All models' outputs for a micro-batch; columns that are padding in every row are left out.

    Whatever asks where a mask is True asks `masks`, which are the same on the host.
    """
    prompt_ids, prompt_mask = prompts
    response_ids, response_mask, ended = responses
    first, width = masks.columns()
    trimmed, ids = masks.trimmed(), response_ids[:, :width]
    batch = (prompt_ids[:, first:], trimmed.prompt, ids, trimmed.response)
    only = trimmed.response if packing else None

    def logprobs_of(lm: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
        return chunked_logprobs(lm, hidden, ids, temperature=sampling.temperature, only=only)

    states = models.actor.states(*batch, packing=packing)
    logprobs = logprobs_of(models.actor.lm, states.hidden)
    with adapter_off(models.reference):
        ref_hidden = before_response(models.reference.base_model, batch, packing=packing)
        ref_logprobs = logprobs_of(models.reference, ref_hidden)
    scores = states.values.new_zeros(len(prompt_ids))
    if models.reward_model is not None:
        known = _with_one_end(ids, response_mask[:, :width], ended, eos)
        together = torch.cat([batch[0], known], dim=1), torch.cat(batch[1::2], dim=1)
        scores = models.reward_model(*together, packing=packing)

    def widened(values: torch.Tensor) -> torch.Tensor:
        return functional.pad(values, (0, response_ids.shape[1] - width))

    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
        response_mask=response_mask,
        logprobs=widened(logprobs),
        sampler_logprobs=widened(logprobs),
        ref_logprobs=widened(ref_logprobs),
        values=widened(states.values),
        scores=scores,
        ended=ended,
    )


def _with_one_end(
    ids: ResponseIds, mask: ResponseMask, ended: PerSequenceFlag, eos: int
) -> ResponseIds:
    """Ids whose last one is `eos` where the response has ended, by whichever stop id.

    A reward model is trained and normalised on responses that all end with `eos` (`rlhf.scoring`),
    and scores at the last token: of another it knows nothing.
    """
    last = mask & ~functional.pad(mask[:, 1:], (0, 1))
    return torch.where(last & ended[:, None], eos, ids)
