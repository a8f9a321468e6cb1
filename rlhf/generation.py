"""Sampling responses with a key-value cache; rows that are finished leave the batch."""

import contextlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rlhf.decoding_attention import decoding_attention
from rlhf.decoding_cache import decoding_cache
from rlhf.distributed import gather_rows, share
from rlhf.last_block import computed_only_at
from rlhf.logits import language_model_head
from rlhf.masked import last_token_index
from rlhf.packed_weights import packed_weights
from rlhf.padding import pad_left, position_ids
from rlhf.params.sampling import SamplingParams
from rlhf.shapes import Draws, PromptIds, PromptMask, ResponseIds, ResponseMask
from rlhf.stopping import NonFiniteError

ONE = 2**52
"""Probability 1 in fixed point. Sums of such numbers are exact, so they do not depend on the order
of summation, and a GPU adds them up deterministically, which torch refuses for floating point."""

MOST_ALIVE = 7 / 8
"""Finished rows leave the batch, and the cache is copied, once the rows alive are so few of it."""
MOST_READ = 2**27
"""Numbers in the middle of a layer's MLP while prompts are read: 256 MiB a tensor in bfloat16.
Longer prompts are read in parts; every batch of the embedded model's recipe is one."""


class Responses(NamedTuple):
    """Sampled responses, padded right."""

    response_ids: ResponseIds
    response_mask: ResponseMask
    ended: Tensor
    """(batch,) bool: the response ends with a stop id, rather than at the length limit."""

    def rows(self) -> list[list[int]]:
        """Token ids of each response without padding; the stop id is kept."""
        ids, mask = self.response_ids.cpu(), self.response_mask.cpu()
        return [ids[i][mask[i]].tolist() for i in range(len(ids))]


def filter_logits(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Logits (batch, vocab) with all but the top-k / top-p tokens at minus infinity.

    Top-p keeps the smallest set of the likeliest tokens whose probability reaches p, including the
    token that brings the sum there (Holtzman et al. 2020, eq. 2; OpenAI's code of 2019 dropped it).
    The likeliest token always stays, and so do ties with the k-th.
    """
    if top_k > 0:
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p < 1.0:
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        shares = _fixed_point(ordered.softmax(dim=-1))
        reached_before = shares.cumsum(dim=-1) - shares >= math.ceil(top_p * ONE)
        reached_before[..., 0] = False
        drop = torch.zeros_like(reached_before).scatter(-1, index, reached_before)
        logits = logits.masked_fill(drop, float("-inf"))
    return logits


@torch.no_grad()
def sample_responses(
    lm: PreTrainedModel,
    prompt_ids: PromptIds,
    prompt_mask: PromptMask,
    params: SamplingParams,
    *,
    stop_ids: Sequence[int],
    pad_id: int,
    draws: Draws,
) -> Responses:
    """One response per prompt; everything after the first of the stop ids is padding.

    Row i, step t is drawn with `draws[i, t]`, whichever rows have ended by then.

    Raises:
        EmptyMaskError: a prompt has no token.
        NonFiniteError: the policy's logits are not finite.
    """
    last_token_index(prompt_mask)
    rows, device = len(prompt_ids), prompt_ids.device
    ids = torch.full((rows, params.max_new_tokens), pad_id, dtype=torch.int64, device=device)
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    active, draws = torch.arange(rows, device=device), draws.to(device)
    stops = torch.tensor(stop_ids, device=device)
    seen, step_ids = prompt_mask, torch.where(prompt_mask, prompt_ids, 0)
    cache = decoding_cache(lm, step_ids.shape[1] + params.max_new_tokens)
    *parts, last = prompt_parts(lm, *prompt_ids.shape)
    padded = not bool(prompt_mask.all())
    with packed_weights(lm):
        for part in parts:
            _read(lm, step_ids[:, part], seen[:, : part.stop], cache, padded=padded)
        step_ids = step_ids[:, last]
        alive = torch.ones(rows, dtype=torch.bool, device=device)
        for step in range(params.max_new_tokens):
            logits = next_logits(lm, step_ids, seen, cache, padded=padded)
            tokens, finite = _draw(
                logits,
                params,
                banned=stops if step < params.min_new_tokens else None,
                uniform=draws[active, step],
            )
            ids[active, step], mask[active, step] = torch.where(alive, tokens, pad_id), alive
            stopped = alive & torch.isin(tokens, stops)
            ended[active] = ended[active] | stopped
            alive = alive & ~stopped
            if (going := _count(alive, finite)) == 0:
                break
            if going <= MOST_ALIVE * len(active):
                kept = torch.nonzero_static(alive, size=going).squeeze(1)
                cache.batch_select_indices(kept)
                active, seen, tokens, alive = (x[kept] for x in (active, seen, tokens, alive))
            seen = torch.cat([seen, seen.new_ones(len(seen), 1)], dim=1)
            step_ids = tokens.unsqueeze(1)
    width = int(mask.any(dim=0).sum())
    return Responses(ids[:, :width], mask[:, :width], ended)


def prompt_parts(lm: PreTrainedModel, rows: int, length: int) -> list[slice]:
    """The positions of prompts that are read at a time: all of them where memory allows."""
    config = lm.config.get_text_config()
    width = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    count = max(1, min(length, -(-rows * length * width // MOST_READ)))
    ends = [length * part // count for part in range(count + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def next_logits(
    lm: PreTrainedModel, ids: Tensor, seen: Tensor, cache: DynamicCache, *, padded: bool = True
) -> Tensor:
    """Logits after the last of the ids that the cache does not hold yet; nothing else is read.

    Unless a row is `padded`, it has seen every position.
    """
    return language_model_head(lm, _read(lm, ids, seen, cache, padded=padded))


def _read(
    lm: PreTrainedModel, ids: Tensor, seen: Tensor, cache: DynamicCache, *, padded: bool
) -> Tensor:
    """Hidden states (batch, hidden) at the last of the ids, which the cache then holds."""
    last = torch.zeros(ids.shape, dtype=torch.bool)
    last[:, -1] = True
    with contextlib.ExitStack() as stack:
        if ids.shape[1] == 1:
            attention_mask = stack.enter_context(decoding_attention(lm, seen, padded=padded))
        else:
            attention_mask = seen.long()
            stack.enter_context(computed_only_at(lm.base_model, last))
        output = lm.base_model(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=position_ids(seen)[:, -ids.shape[1] :],
            past_key_values=cache,
            use_cache=True,
        )
    hidden: Tensor = output.last_hidden_state[:, -1]
    return hidden


def _draw(
    logits: Tensor, params: SamplingParams, *, banned: Tensor | None, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """A token for each row, and whether all logits were finite: if not, the tokens mean nothing."""
    if params.temperature != 1:
        logits = logits / params.temperature
    if banned is not None:
        logits[:, banned] = float("-inf")
    logits = filter_logits(logits, top_k=params.top_k, top_p=params.top_p)
    probabilities = logits.softmax(dim=-1)
    # NaN or infinity anywhere in a row of logits makes its whole softmax NaN.
    return draw_index(probabilities, uniform), probabilities[:, 0].isfinite().all()


def _count(alive: Tensor, finite: Tensor) -> int:
    """How many rows go on, where the logits were finite; the device is waited for once."""
    is_finite, going = torch.stack([finite.long(), alive.sum()]).tolist()
    if not is_finite:
        raise NonFiniteError(
            "the policy's logits are not finite, so nothing can be sampled: its weights are broken"
        )
    return int(going)


def draw_index(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """An index for each row of probabilities (rows, vocab), by inversion of its uniform number.

    A token of probability 0 is never drawn. (`torch.multinomial` draws a number for every token,
    which on a CPU takes a third of a decoding step of a small model.)
    """
    sums = _fixed_point(probabilities).cumsum(dim=-1)
    total = sums[:, -1:]
    # Rounding may take the product to the total itself, which no sum exceeds.
    point = torch.minimum((uniform.unsqueeze(1) * total).long(), total - 1)
    return torch.searchsorted(sums, point, right=True).squeeze(1)


def _fixed_point(probabilities: Tensor) -> Tensor:
    return (probabilities.double() * ONE).long()


def sample_all(
    lm: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    stop_ids: Sequence[int],
    pad_id: int,
    batch_size: int,
    draws: Draws,
) -> list[list[int]]:
    """Responses as token rows, in the prompts' order, sampled `batch_size` prompts at a time.

    Prompts of similar length share a batch, and of several processes each samples its share. Which
    prompts share a batch affects a response only where a draw falls within rounding of the boundary
    between two tokens.
    """
    device = next(lm.parameters()).device
    order = share(sorted(range(len(prompts)), key=lambda row: len(prompts[row])))
    found: list[list[int]] = []
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        ids, mask = pad_left([prompts[row] for row in chosen], pad_id)
        responses = sample_responses(
            lm,
            ids.to(device),
            mask.to(device),
            params,
            stop_ids=stop_ids,
            pad_id=pad_id,
            draws=draws[chosen],
        )
        found += [[row, *ids] for row, ids in zip(chosen, responses.rows(), strict=True)]
    sampled: list[list[int]] = [[] for _ in prompts]
    for row, *response in gather_rows(found):
        sampled[row] = response
    return sampled
