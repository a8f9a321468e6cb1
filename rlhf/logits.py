"""Hidden states and logits of whole sequences, at the positions that are read and no others."""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from rlhf.attention_masks import mask_from_host
from rlhf.compute import outside_autocast, sent
from rlhf.head_products import product_in_bfloat16
from rlhf.packing import hidden_from_packed_rows
from rlhf.padding import position_ids
from rlhf.shapes import (
    AttentionMask,
    Logits,
    PromptIds,
    PromptMask,
    ResponseIds,
    ResponseMask,
    TokenIds,
)
from rlhf.trunk_passes import hidden_states

OUTPUT_LAYER_ALONE = frozenset({"llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3"})
"""`model_type` of the models whose logits are what their output layer gives. Calling it directly
spares 80 µs a call, 3 % of a decoding step of the embedded model; a test compares each."""


def sequence_hidden(
    trunk: nn.Module,
    ids: TokenIds,
    mask: AttentionMask,
    *,
    read: AttentionMask | None = None,
    packing: bool = False,
) -> Tensor:
    """Hidden states (batch, sequence, hidden) with positions counted over real tokens only.

    Ids under padding are replaced by 0, a legal id whatever the pad id is. Where only some
    positions will be `read`, the others' hidden states are not computed to the end. With `packing`
    no padding is computed, for trunks that pass `check_packing`. Masks may lie on the host, which
    asks where they are True: then it waits for no device.
    """
    read = mask if read is None else read
    if packing and len(ids):
        return hidden_from_packed_rows(trunk, ids, mask, read)
    on_host = mask.cpu()
    positions = position_ids(on_host)
    visible = mask_from_host(trunk, on_host, positions, ids.device)
    with visible as attention_mask:
        legal = torch.where(sent(mask, ids.device), ids, 0)
        return hidden_states(trunk, legal, attention_mask, positions, read=read)


def before_response(
    trunk: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor], *, packing: bool = False
) -> Tensor:
    """Hidden states (batch, response, hidden) of prompts and responses, each with its mask.

    The masks may lie on the host, as in `sequence_hidden`.
    Position `prompt + t - 1` predicts response token t, so they are read one step early.
    """
    ids, mask = torch.cat(batch[0::2], dim=1), torch.cat(batch[1::2], dim=1)
    read, before = torch.zeros_like(mask), slice(batch[0].shape[1] - 1, -1)
    read[:, before] = batch[3]
    return sequence_hidden(trunk, ids, mask, read=read, packing=packing)[:, before]


class _GivenOutput(BaseModelOutputWithPast):  # type: ignore[misc]
    """A trunk's output with nothing but hidden states; what families add to theirs is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _GivenHidden(nn.Module):
    """Stands where a trunk stood, and returns hidden states that are known already."""

    def __init__(self, hidden: Tensor):
        """Return `hidden` whatever is asked."""
        super().__init__()
        self._hidden = hidden

    def forward(self, *args: object, **kwargs: object) -> _GivenOutput:
        """The hidden states, in the form of a trunk's output."""
        del args, kwargs
        return _GivenOutput(last_hidden_state=self._hidden)

    @property
    def decoder(self) -> nn.Module:
        """OPT's model calls this part of its trunk."""
        return self


def language_model_head(lm: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits in float32 of hidden states (..., hidden), by the model's own code behind its trunk.

    That code is more than the output layer: Gemma caps its logits, Granite and Cohere scale them.
    """
    alone = lm.config.model_type in OUTPUT_LAYER_ALONE
    if alone and (logits := product_in_bfloat16(lm.get_output_embeddings(), hidden)) is not None:
        return logits
    with outside_autocast(hidden.device):
        hidden = hidden.float()
        if alone:
            return cast(Tensor, lm.get_output_embeddings()(hidden)).float()
        head = copy.copy(lm)
        batch = hidden if hidden.ndim == 3 else hidden[None]
        head._modules = lm._modules | {lm.base_model_prefix: _GivenHidden(batch)}
        logits = cast(Tensor, head(inputs_embeds=batch, use_cache=False).logits).float()
    return logits if hidden.ndim == 3 else logits[0]


def response_logits(
    lm: PreTrainedModel,
    prompt_ids: PromptIds,
    prompt_mask: PromptMask,
    response_ids: ResponseIds,
    response_mask: ResponseMask,
) -> Logits:
    """Logits that predict every response token, (batch, response, vocab)."""
    batch = (prompt_ids, prompt_mask, response_ids, response_mask)
    return language_model_head(lm, before_response(lm.base_model, batch))
