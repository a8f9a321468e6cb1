"""Hidden states and logits of whole sequences, at the positions that are read and no others."""

from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.last_block import computed_only_at
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


def sequence_hidden(
    trunk: nn.Module, ids: TokenIds, mask: AttentionMask, *, read: AttentionMask | None = None
) -> Tensor:
    """Hidden states (batch, sequence, hidden) with positions counted over real tokens only.

    Ids under padding are replaced by 0, a legal id whatever the pad id is. Where only some
    positions will be `read`, the others' hidden states are not computed to the end.
    """
    with computed_only_at(trunk, mask if read is None else read):
        output = trunk(
            input_ids=torch.where(mask, ids, 0),
            attention_mask=mask.long(),
            position_ids=position_ids(mask),
            use_cache=False,
        )
    return cast(Tensor, output.last_hidden_state)


def before_response(trunk: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Hidden states (batch, response, hidden) of prompts and responses, each with its mask.

    Position `prompt + t - 1` predicts response token t, so they are read one step early.
    """
    ids, mask = torch.cat(batch[0::2], dim=1), torch.cat(batch[1::2], dim=1)
    read, before = torch.zeros_like(mask), slice(batch[0].shape[1] - 1, -1)
    read[:, before] = batch[3]
    return sequence_hidden(trunk, ids, mask, read=read)[:, before]


def language_model_head(lm: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits in float32 from hidden states, for the positions asked for only."""
    head = lm.get_output_embeddings()
    assert isinstance(head, nn.Module), f"{type(lm).__name__} has no output embeddings"
    return cast(Tensor, head(hidden)).float()


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
