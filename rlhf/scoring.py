"""Scores of texts by a reward model: prompts and responses to rows of ids, rows to numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.chat import Prompt, encode_prompt, encode_response
from rlhf.compute import Compute
from rlhf.distributed import share, total
from rlhf.padding import pad_right
from rlhf.reward_models import RewardModel
from rlhf.special_ids import special_ids


class Encoder:
    """Encodes prompts with responses for the reward model, each prompt once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        """Use the policy's tokenizer, so that ids mean the same to both."""
        self._tokenizer = tokenizer
        self.pad_id = special_ids(tokenizer).pad
        self._prompts: dict[str, list[int]] = {}

    def encode(self, prompt: Prompt, response: str, *, finished: bool) -> list[int]:
        """Token ids of the prompt, the response and, where it is finished, the end token.

        So the last token, where the model scores, is the one that PPO scores at.
        """
        key = prompt if isinstance(prompt, str) else repr(prompt)
        if key not in self._prompts:
            self._prompts[key] = encode_prompt(self._tokenizer, prompt)
        return [*self._prompts[key], *encode_response(self._tokenizer, response, finished=finished)]


@torch.no_grad()
def score_rows(
    model: RewardModel,
    rows: Sequence[Sequence[int]],
    *,
    pad_id: int,
    compute: Compute,
    batch_size: int = 256,
) -> list[float]:
    """Normalised scores of token rows, in their order; rows of similar length share a batch."""
    order = share(sorted(range(len(rows)), key=lambda row: len(rows[row])))
    scores: Tensor = torch.zeros(len(rows))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        ids, mask = pad_right([rows[row] for row in chosen], pad_id)
        with compute.autocast():
            batch = model(ids.to(compute.device), mask.to(compute.device))
        scores[chosen] = batch.cpu()
    values: list[float] = total(scores).tolist()
    return values
