"""Sampling responses with a key-value cache; rows that are finished leave the batch."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rlhf.decoding_attention import decoding_attention
from rlhf.decoding_cache import decoding_cache
from rlhf.decoding_graph import ReadPrompts, Sampled, recorder, sample_recorded
from rlhf.distributed import gather_rows, share
from rlhf.head_products import keeping_casts
from rlhf.last_block import computed_only_at
from rlhf.logits import language_model_head
from rlhf.masked import last_token_index
from rlhf.packed_weights import packed_weights
from rlhf.padding import pad_left, position_ids
from rlhf.params.sampling import SamplingParams
from rlhf.pass_sizes import tokens_at_a_time
from rlhf.shapes import Draws, PromptIds, PromptMask, ResponseIds, ResponseMask
from rlhf.token_draws import draw_tokens, going_on, one_of

MOST_ALIVE = 7 / 8
"""Finished rows leave the batch, and the cache, once the rows alive are so few of it."""


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
    device = prompt_ids.device
    stops, draws = torch.tensor(stop_ids, device=device), draws.to(device)
    with packed_weights(lm), keeping_casts():
        read = _read_prompts(lm, prompt_ids, prompt_mask, params.max_new_tokens)
        if (record := recorder(lm, device)) is not None:
            found = sample_recorded(
                read, params, stops=stops, pad_id=pad_id, draws=draws, record=record
            )
        else:
            found = _one_by_one(read, params, stops=stops, pad_id=pad_id, draws=draws)
    width = int(found.mask.any(dim=0).sum())
    return Responses(found.ids[:, :width], found.mask[:, :width], found.ended)


def _read_prompts(
    lm: PreTrainedModel, prompt_ids: PromptIds, prompt_mask: PromptMask, room: int
) -> ReadPrompts:
    """Prompts in a cache with room for so many tokens more, and the logits that follow them."""
    ids = torch.where(prompt_mask, prompt_ids, 0)
    cache = decoding_cache(lm, ids.shape[1] + room)
    *parts, last = prompt_parts(lm, *ids.shape)
    padded = not bool(prompt_mask.all())
    for part in parts:
        _read(lm, ids[:, part], prompt_mask[:, : part.stop], cache, padded=padded)
    logits = next_logits(lm, ids[:, last], prompt_mask, cache, padded=padded)
    return ReadPrompts(lm, cache, prompt_mask, padded, logits)


def _one_by_one(
    read: ReadPrompts, params: SamplingParams, *, stops: Tensor, pad_id: int, draws: Tensor
) -> Sampled:
    """The responses, each step asked for by itself; the cache is used up."""
    lm, cache, seen, padded, logits = read
    rows, device = len(seen), seen.device
    ids = torch.full((rows, params.max_new_tokens), pad_id, dtype=torch.int64, device=device)
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    active, alive = torch.arange(rows, device=device), ~ended
    for step in range(params.max_new_tokens):
        tokens, finite = draw_tokens(
            logits,
            params,
            banned=one_of(stops, logits) if step < params.min_new_tokens else None,
            uniform=draws[active, step],
        )
        ids[active, step], mask[active, step] = torch.where(alive, tokens, pad_id), alive
        stopped = alive & torch.isin(tokens, stops)
        ended[active] = ended[active] | stopped
        alive = alive & ~stopped
        going = going_on(torch.stack([finite.long(), alive.sum()]))
        if going == 0 or step + 1 == params.max_new_tokens:
            break
        if going <= MOST_ALIVE * len(active):
            kept = _moved_up(alive, going)
            cache.batch_select_indices(kept)
            active, seen, tokens, alive = (x[kept] for x in (active, seen, tokens, alive))
        seen = torch.cat([seen, seen.new_ones(len(seen), 1)], dim=1)
        logits = next_logits(lm, tokens.unsqueeze(1), seen, cache, padded=padded)
    return Sampled(ids, mask, ended)


def _moved_up(alive: Tensor, count: int) -> Tensor:
    """The `count` rows that are alive: each in its place, but those behind fill the gaps.

    Nothing here waits for a GPU.
    """
    rows = torch.nonzero_static(alive, size=count).squeeze(1)
    gaps = (~alive[:count]).long()
    filling = rows[(count - gaps.sum() + gaps.cumsum(0) - 1).clamp(0, count - 1)]
    return torch.where(alive[:count], torch.arange(count, device=alive.device), filling)


def prompt_parts(lm: PreTrainedModel, rows: int, length: int) -> list[slice]:
    """The positions of prompts that are read at a time: all of them where memory allows."""
    count = max(1, min(length, -(-rows * length // tokens_at_a_time(lm))))
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


def sample_batches(
    lm: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    stop_ids: Sequence[int],
    pad_id: int,
    batch_size: int,
    draws: Draws,
) -> Iterator[list[list[int]]]:
    """Responses, `batch_size` prompts at a time: of each its prompt's place, then its token ids.

    `in_order` puts them together. Prompts of similar length share a batch, and of several processes
    each samples its share. Which prompts share a batch affects a response only where a draw falls
    within rounding of the boundary between two tokens.
    """
    device = next(lm.parameters()).device
    order = share(sorted(range(len(prompts)), key=lambda row: len(prompts[row])))
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
        yield [[row, *ids] for row, ids in zip(chosen, responses.rows(), strict=True)]


def in_order(batches: Iterable[Sequence[Sequence[int]]], count: int) -> list[list[int]]:
    """The responses to `count` prompts, of all processes, in the prompts' order."""
    sampled: list[list[int]] = [[] for _ in range(count)]
    for row, *response in gather_rows([row for batch in batches for row in batch]):
        sampled[row] = response
    return sampled
