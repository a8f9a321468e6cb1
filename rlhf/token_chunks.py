"""What is read off logits, a chunk of tokens at a time: the logits of a large batch never exist.

They are the largest tensors by far: 256 responses of 512 tokens by a vocabulary of 151,936 take
74 GiB in float32, of which a loss reads one number or two for each token. So the head runs on a
chunk of tokens, their numbers are kept and their logits dropped; the backward pass computes the
logits of one chunk after the other again. A batch that is one chunk goes through the head as it is,
once.

Where a mask is given, the padding goes through no head either; on the host it makes no device wait.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlhf.compute import sent
from rlhf.logits import language_model_head
from rlhf.logprobs import TokenLogprobs, token_logprobs, token_logprobs_and_entropy
from rlhf.shapes import HiddenStates, PerToken, ResponseIds, ResponseMask
from rlhf.tile_products import now_and_again

MOST_LOGITS = 2**26
"""Logits at a time: 256 MiB in float32, five times that while their gradient is computed. Every
batch of the embedded model's recipe is one chunk."""

Result = TypeVar("Result")


def each_chunk(
    lm: PreTrainedModel, read: Callable[..., Result], *per_token: Tensor
) -> list[Result]:
    """What `read` gives for consecutive chunks of the tokens of a batch.

    Args:
        lm: whose vocabulary the logits have.
        read: from tensors (batch, tokens, ...) to what is to be kept of their logits.
        per_token: these tensors; more than one chunk come as (1, tokens, ...).
    """
    tokens = per_token[0].shape[0] * per_token[0].shape[1]
    vocabulary = lm.get_output_embeddings().weight.shape[0]
    count = min(tokens, -(-tokens * vocabulary // MOST_LOGITS))
    if count <= 1:
        return [read(*per_token)]
    # Equal ones: products of few rows are slow, and may depend on the number of threads.
    rows = (each.flatten(0, 1)[None].tensor_split(count, dim=1) for each in per_token)
    chunks = zip(*rows, strict=True)
    return [
        checkpoint(
            read,
            *chunk,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=now_and_again,
        )
        for chunk in chunks
    ]


def chunked(
    lm: PreTrainedModel, read: Callable[..., Tensor], only: ResponseMask, *per_token: Tensor
) -> PerToken:
    """One number of each token where `only` is True, 0 elsewhere; arguments as of `each_chunk`."""
    chunks = each_chunk(lm, read, *picked(only, *per_token))
    return _spread(chunks, only, per_token[0].device)


def chunked_logprobs(
    lm: PreTrainedModel,
    hidden: HiddenStates,
    token_ids: ResponseIds,
    *,
    temperature: float,
    only: ResponseMask | None = None,
) -> PerToken:
    """`token_logprobs` of the logits that the model's head gives for these hidden states.

    With `only`, of the tokens where it is True; elsewhere it is 0.
    """

    def read(hidden: Tensor, ids: Tensor) -> Tensor:
        return token_logprobs(language_model_head(lm, hidden), ids, temperature=temperature)

    if only is None:
        return joined(each_chunk(lm, read, hidden, token_ids), token_ids)
    return chunked(lm, read, only, hidden, token_ids)


def chunked_logprobs_and_entropy(
    lm: PreTrainedModel,
    hidden: HiddenStates,
    token_ids: ResponseIds,
    *,
    temperature: float,
    train_entropy: bool = True,
    only: ResponseMask | None = None,
) -> TokenLogprobs:
    """`token_logprobs_and_entropy` of the logits that the head gives for these hidden states.

    With `only`, of the tokens where it is True; elsewhere both are 0.
    """

    def read(hidden: Tensor, ids: Tensor) -> TokenLogprobs:
        return token_logprobs_and_entropy(
            language_model_head(lm, hidden),
            ids,
            temperature=temperature,
            train_entropy=train_entropy,
        )

    if only is None:
        numbers = zip(*each_chunk(lm, read, hidden, token_ids), strict=True)
        return TokenLogprobs(*(joined(each, token_ids) for each in numbers))
    numbers = zip(*each_chunk(lm, read, *picked(only, hidden, token_ids)), strict=True)
    return TokenLogprobs(*(_spread(each, only, hidden.device) for each in numbers))


def picked(only: ResponseMask, *per_token: Tensor) -> list[Tensor]:
    """Of tensors (batch, tokens, ...) what is under the mask, as (1, chosen, ...)."""
    places = only.cpu().nonzero(as_tuple=True)
    device = per_token[0].device
    row, column = (sent(place, device) for place in places)
    return [each[row, column][None] for each in per_token]


def joined(chunks: Sequence[Tensor], like: Tensor) -> PerToken:
    """Numbers of each token (batch, tokens, as `like`) from those of its chunks."""
    return chunks[0] if len(chunks) == 1 else torch.cat(list(chunks), dim=1).view(like.shape[:2])


def _spread(chunks: Sequence[Tensor], only: ResponseMask, device: torch.device) -> PerToken:
    """Numbers of chosen tokens in their places (batch, tokens), 0 in the others."""
    numbers = torch.cat(list(chunks), dim=1).squeeze(0)
    places = sent(only.cpu().flatten().nonzero().squeeze(1), device)
    return numbers.new_zeros(only.numel()).index_copy(0, places, numbers).view(only.shape)
