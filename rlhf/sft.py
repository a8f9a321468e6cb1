"""Supervised fine-tuning on demonstrations: next-token loss on the response, end token included.

Of a conversation, every turn of the assistant is a response.

The loss is the mean over all response tokens of an optimiser step, so that neither micro-batching
nor padding nor packing changes a gradient, nor the number of processes (`rlhf.distributed`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.chat import Prompt, encode_prompt, encode_response
from rlhf.compute import Compute, sent
from rlhf.conversations import encode_conversation
from rlhf.distributed import share, totals
from rlhf.language_model_loss import language_model_loss
from rlhf.logits import language_model_head, sequence_hidden
from rlhf.optimisers import Training
from rlhf.packing import packed_hidden, packed_positions, packed_rows
from rlhf.padding import length_buckets, pad_right
from rlhf.params.sft import SFTParams
from rlhf.seeding import Seeds
from rlhf.sharding import MicroBatch
from rlhf.templates import Message
from rlhf.token_chunks import each_chunk, picked

Demonstration = tuple[Prompt, str] | Sequence[Message]
"""A prompt with its response, or a conversation."""


@dataclass(frozen=True, slots=True)
class Example:
    """A tokenised demonstration."""

    prompt: list[int]
    response: list[int]
    """Of a conversation, everything from the assistant's first turn on."""
    by_assistant: list[bool] | None = None
    """Of a conversation: which tokens of `response` are trained. None: all."""

    def __len__(self) -> int:
        """Tokens of prompt and response together."""
        return len(self.prompt) + len(self.response)

    @property
    def ids(self) -> list[int]:
        """The whole sequence."""
        return [*self.prompt, *self.response]

    @property
    def trained(self) -> list[bool]:
        """Whether each token of the sequence is trained."""
        by_assistant = self.by_assistant or [True] * len(self.response)
        return [*(False for _ in self.prompt), *by_assistant]


@dataclass(frozen=True, slots=True)
class SFTMetrics:
    """One optimiser step of supervised fine-tuning."""

    loss: float
    grad_norm: float
    tokens: int


def encode_examples(
    tokenizer: PreTrainedTokenizerBase, demonstrations: Sequence[Demonstration], max_tokens: int
) -> tuple[list[Example], int]:
    """Tokenised demonstrations and how many were left out as too long.

    Raises:
        TokenizerError: a demonstration that the tokenizer or its chat template cannot write.
        TemplateError: the template fails, or takes more than it may.
    """
    examples = [_encode(tokenizer, demonstration) for demonstration in demonstrations]
    kept = [example for example in examples if len(example) <= max_tokens]
    return kept, len(examples) - len(kept)


def _encode(tokenizer: PreTrainedTokenizerBase, demonstration: Demonstration) -> Example:
    if isinstance(demonstration, tuple):
        prompt, response = demonstration
        ids = encode_response(tokenizer, response, finished=True)
        return Example(encode_prompt(tokenizer, prompt), ids)
    ids, by_assistant = encode_conversation(tokenizer, demonstration)
    first = by_assistant.index(True)
    return Example(ids[:first], ids[first:], by_assistant[first:])


def total_steps(num_examples: int, params: SFTParams) -> int:
    """Optimiser steps of the whole training."""
    return params.epochs * -(-num_examples // params.batch_size)


def train(
    training: Training,
    examples: Sequence[Example],
    params: SFTParams,
    *,
    pad_id: int,
    compute: Compute,
    seeds: Seeds,
) -> Iterator[SFTMetrics]:
    """Train on responses only; yields each optimiser step."""
    total = total_steps(len(examples), params)
    lengths = [len(example) for example in examples]
    per_epoch = total // params.epochs
    for epoch in range(training.step // per_epoch, params.epochs):
        batches = length_buckets(lengths, params.batch_size, seeds.torch("sft", "order", epoch))
        for batch in batches[training.step - epoch * per_epoch :]:
            chosen = [examples[row] for row in batch]
            tokens = sum(sum(example.trained) for example in chosen)
            losses = []
            with training.held.step(compute):
                for micro in training.held.micro_batches(chosen, params.micro_batch_size):
                    losses.append(
                        [_backward(training, micro, tokens, params, pad_id=pad_id, compute=compute)]
                    )
            (loss,), (norm,) = training.advance(losses, 1, params.optimiser, total)
            yield SFTMetrics(loss, norm, tokens)
    training.require_finite_weights()


@torch.no_grad()
def mean_loss(
    model: PreTrainedModel,
    examples: Sequence[Example],
    params: SFTParams,
    *,
    pad_id: int,
    compute: Compute,
) -> float:
    """Mean loss of a response token, in nats, of examples that nothing is trained on."""
    by_length = share(sorted(examples, key=len))
    tokens = sum(sum(example.trained) for example in examples)
    total = 0.0
    with compute.autocast():
        for start in range(0, len(by_length), params.micro_batch_size):
            micro = by_length[start : start + params.micro_batch_size]
            total += response_loss(model, micro, tokens=1, pad_id=pad_id).item()
    return totals([total])[0] / tokens


def response_loss(
    model: PreTrainedModel, examples: Sequence[Example], *, tokens: int, pad_id: int
) -> torch.Tensor:
    """Sum of response-token losses divided by `tokens`, a scalar."""
    device = next(model.parameters()).device
    ids, mask = pad_right([example.ids for example in examples], pad_id)
    trained, _ = pad_right([example.trained for example in examples], 0)
    ids, trained = sent(ids, device), trained.bool()
    hidden = sequence_hidden(model.base_model, ids, mask, read=_predicting(trained))
    return _loss_of_trained(model, hidden, ids, trained, tokens)


def packed_response_loss(
    model: PreTrainedModel, examples: Sequence[Example], *, tokens: int, width: int
) -> torch.Tensor:
    """The same from rows of several examples, of `width` tokens at most where one is not enough."""
    device = next(model.parameters()).device
    lengths = [len(example) for example in examples]
    rows = packed_rows(model.base_model, device, lengths, width)
    packed = [[examples[index] for index in row] for row in rows]
    ids, _ = pad_right([[t for e in row for t in e.ids] for row in packed], 0)
    positions = packed_positions([[len(example) for example in row] for row in packed])
    trained, _ = pad_right([[t for e in row for t in e.trained] for row in packed], 0)
    # The first token of an example has nothing before it that could predict it.
    trained = trained.bool() & (positions > 0)
    ids = sent(ids, device)
    hidden = packed_hidden(model.base_model, ids, positions, _predicting(trained))
    return _loss_of_trained(model, hidden, ids, trained, tokens)


def _predicting(trained: torch.Tensor) -> torch.Tensor:
    """True at the positions whose next token is trained."""
    return torch.nn.functional.pad(trained[:, 1:], (0, 1))


def _loss_of_trained(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    trained: torch.Tensor,
    tokens: int,
) -> torch.Tensor:
    """The loss from hidden states; only those that predict a trained token go through the head.

    `trained` lies on the host.
    """

    def read(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = language_model_head(model, hidden)
        every = torch.ones(labels.shape, dtype=torch.bool)
        return language_model_loss(logits, labels, every, normaliser=tokens)

    chosen = picked(trained[:, 1:], hidden[:, :-1], ids[:, 1:])
    return torch.stack(each_chunk(model, read, *chosen)).sum()


def _backward(
    training: Training,
    micro: MicroBatch[list[Example]],
    tokens: int,
    params: SFTParams,
    *,
    pad_id: int,
    compute: Compute,
) -> torch.Tensor:
    """The loss of a micro-batch, whose gradients are added to those of the ones before."""
    model = training.model
    assert isinstance(model, PreTrainedModel)

    if params.packing:
        work = partial(packed_response_loss, tokens=tokens, width=params.max_tokens)
    else:
        work = partial(response_loss, tokens=tokens, pad_id=pad_id)
    with compute.autocast():
        loss = micro.counted(training.held.compute(partial(work, model, micro.rows)))
    loss.backward()
    return loss.detach()
