"""Decoding steps that a GPU repeats by itself, from one recording (a CUDA graph).

A step asks a GPU for some fifty small kernels a layer. Recorded once, it is one request, with the
draw of its tokens inside. All that changes from step to step lies in tensors that stay where they
are, the number of the step among them; keys are read up to a length that seldom changes, and masked
behind what has been written. Another length or fewer rows are recorded anew.

The kernels are those of decoding without a recording (`rlhf.generation`), except that attention
always has a mask, and in bfloat16 a kernel of its own (`rlhf.gpu_attention`).
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rlhf.attention_masks import attending_as, takes_any_mask
from rlhf.compute import plain_writes
from rlhf.cuda_graphs import Record, Repeat, record, switched_off
from rlhf.decoding_attention import recorded_attention
from rlhf.decoding_cache import RoomyLayer
from rlhf.logits import language_model_head
from rlhf.params.sampling import SamplingParams
from rlhf.positions import change_with_length
from rlhf.shapes import Draws, PromptMask
from rlhf.token_draws import draw_tokens, going_on, one_of

LENGTH_STEP = 128
"""Keys are read up to a multiple of this many positions."""

MOST_LEFT = 1 / 2
"""Finished rows leave once so few of the rows are left: a GPU reads the weights for all at once,
and every leaving is a recording."""


class ReadPrompts(NamedTuple):
    """Prompts that a model has read."""

    lm: PreTrainedModel
    cache: DynamicCache
    """Of `decoding_cache`, with room for the responses."""
    seen: PromptMask
    padded: bool
    """Whether some are shorter than others."""
    logits: Tensor
    """(rows, vocab), which follow the prompts."""


class Sampled(NamedTuple):
    """Sampled responses (batch, most tokens), padded right, their mask, and which have ended."""

    ids: Tensor
    mask: Tensor
    ended: Tensor


def recorder(lm: PreTrainedModel, device: torch.device) -> Record | None:
    """How steps of the model are recorded there; None where they are not."""
    if device.type != "cuda" or switched_off():
        return None
    trunk = lm.base_model
    return record if takes_any_mask(trunk) and not change_with_length(trunk) else None


@dataclass
class _Rows:
    """The responses that go on, in tensors that a recorded step reads and writes in place."""

    number: Tensor
    """(rows,) which of all responses they are."""
    ids: Tensor
    mask: Tensor
    ended: Tensor
    alive: Tensor
    """(rows,) bool: not ended yet; the others only keep their row."""
    tokens: Tensor
    """(rows, 1) drawn last."""
    positions: Tensor
    """(rows, 1) of these tokens."""
    seen: Tensor
    """(rows, prompt and response) bool: what the next query sees."""
    draws: Tensor

    def keep(self, rows: Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value.index_select(0, rows))


def sample_recorded(
    read: ReadPrompts,
    params: SamplingParams,
    *,
    stops: Tensor,
    pad_id: int,
    draws: Draws,
    record: Record,
) -> Sampled:
    """The responses to these prompts; row i, step t is drawn with `draws[i, t]`.

    The cache is used up.

    Raises:
        NonFiniteError: the policy's logits are not finite.
    """
    steps = _Steps(read, params, stops=stops, pad_id=pad_id, draws=draws)
    steps.draw(read.logits)
    prompt = read.seen.shape[1]
    repeat: Repeat | None = None
    for step in range(1, params.max_new_tokens):
        if (going := going_on(steps.state)) == 0:
            break
        if going <= MOST_LEFT * len(steps.rows.number):
            steps.keep_alive(going)
            repeat = None
        if prompt + step > steps.shown:
            steps.show(prompt + step)
            repeat = None
        if repeat is not None:
            repeat()
        elif step + 1 < params.max_new_tokens:
            repeat = record(steps.advance)
        else:
            steps.advance()  # The last one would be recorded for nothing.
    going_on(steps.state)
    steps.store()
    return steps.found


class _Steps:
    """What a step does; every tensor that it changes keeps its place in memory."""

    def __init__(
        self,
        read: ReadPrompts,
        params: SamplingParams,
        *,
        stops: Tensor,
        pad_id: int,
        draws: Draws,
    ):
        """Begin after the prompts."""
        seen = read.seen
        (rows, prompt), device = seen.shape, seen.device
        self._lm, self._cache, self._params = read.lm, read.cache, params
        self._stops, self._pad = stops, pad_id
        self._place = torch.full((1,), prompt, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self.shown = 0
        """So many positions are read."""
        self.state = torch.zeros(2, dtype=torch.int64, device=device)
        """Whether all logits were finite, and how many rows go on."""
        room = torch.zeros(rows, params.max_new_tokens, dtype=torch.bool, device=device)
        ids = torch.full(room.shape, pad_id, device=device)
        self.found = Sampled(ids, room, room[:, 0].clone())
        self.rows = _Rows(
            number=torch.arange(rows, device=device),
            ids=ids.clone(),
            mask=room.clone(),
            ended=room[:, 0].clone(),
            alive=~room[:, 0],
            tokens=torch.full((rows, 1), pad_id, device=device),
            positions=seen.sum(dim=1, keepdim=True),
            seen=torch.cat([seen, room], dim=1),
            draws=draws,
        )
        layers = [cast(RoomyLayer, layer) for layer in read.cache.layers]
        self._attention = recorded_attention(read.lm, layers[0].keys)
        read.cache.layers = [layer.fixed(self._place) for layer in layers]

    def advance(self) -> None:
        """A step: the tokens drawn last are read, and the next are drawn."""
        rows, place = self.rows, self._place
        rows.seen.index_fill_(1, place, True)
        with attending_as(self._lm.config, self._attention or "sdpa"):
            output = self._lm.base_model(
                input_ids=rows.tokens,
                attention_mask=rows.seen[:, None, None, : self.shown],
                position_ids=rows.positions,
                past_key_values=self._cache,
                use_cache=True,
            )
        place += 1
        rows.positions += 1
        self.draw(language_model_head(self._lm, output.last_hidden_state[:, -1]))

    def draw(self, logits: Tensor) -> None:
        """A token for each row."""
        rows, least = self.rows, self._params.min_new_tokens
        drawn, finite = draw_tokens(
            logits,
            self._params,
            banned=one_of(self._stops, logits) & (self._step < least) if least else None,
            uniform=rows.draws.index_select(1, self._step).squeeze(1),
        )
        with plain_writes():
            kept = torch.where(rows.alive, drawn, self._pad)
            rows.ids.index_copy_(1, self._step, kept[:, None])
            rows.mask.index_copy_(1, self._step, rows.alive[:, None])
        # `torch.isin` asks the device where there are many.
        stopped = rows.alive & (drawn[:, None] == self._stops).any(dim=1)
        rows.ended |= stopped
        rows.alive &= ~stopped
        rows.tokens.copy_(drawn[:, None])
        self.state.copy_(torch.stack([finite.long(), rows.alive.sum()]))
        self._step += 1

    def show(self, length: int) -> None:
        """Let the next steps read so many positions, or some more."""
        room = self.rows.seen.shape[1]
        # Our own kernel skips what is masked.
        self.shown = room if self._attention else min(-(-length // LENGTH_STEP) * LENGTH_STEP, room)
        for layer in self._cache.layers:
            layer.shown = self.shown

    def keep_alive(self, count: int) -> None:
        """Go on with the rows that have not ended, so many, in other memory."""
        self.store()
        kept = torch.nonzero_static(self.rows.alive, size=count).squeeze(1)
        self.rows.keep(kept)
        self._cache.batch_select_indices(kept)

    def store(self) -> None:
        """Put down what the rows have so far."""
        rows = self.rows
        for found, part in zip(self.found, (rows.ids, rows.mask, rows.ended), strict=True):
            found[rows.number] = part
