"""Scores of texts by a reward model: prompts and responses to rows of ids, rows to numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.chat import Prompt, encode_prompt, encode_response
from rlhf.compute import Compute
from rlhf.distributed import share, total
from rlhf.padding import pad_right
from rlhf.pass_sizes import tokens_at_a_time
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


def score_rows(
    model: RewardModel,
    rows: Sequence[Sequence[int]],
    *,
    pad_id: int,
    compute: Compute,
    batch_size: int = 256,
) -> list[float]:
    """Normalised scores of token rows, in their order; arguments as for `score_batches`."""
    batches = score_batches(model, rows, pad_id=pad_id, compute=compute, batch_size=batch_size)
    return scores_in_order(batches, len(rows))


def text_scores(
    model: RewardModel, encoder: Encoder, compute: Compute
) -> Callable[[Sequence[Prompt], Sequence[str], Sequence[bool]], list[float]]:
    """What gives normalised scores of responses as text, each with its prompt and whether it ended.

    For a reward model that has other words than the policy.
    """

    def scores(
        prompts: Sequence[Prompt], responses: Sequence[str], finished: Sequence[bool]
    ) -> list[float]:
        texts = zip(prompts, responses, finished, strict=True)
        rows = [encoder.encode(prompt, text, finished=end) for prompt, text, end in texts]
        return score_rows(model, rows, pad_id=encoder.pad_id, compute=compute)

    return scores


@torch.no_grad()
def score_batches(
    model: RewardModel,
    rows: Sequence[Sequence[int]],
    *,
    pad_id: int,
    compute: Compute,
    batch_size: int = 256,
) -> Iterator[list[tuple[int, float]]]:
    """The same batch by batch: the place of each row among the rows, and its score.

    Rows of similar length share a batch, and of several processes each scores its share.

    Args:
        model: the reward model.
        rows: token ids of each.
        pad_id: any legal id.
        compute: where, and in which precision.
        batch_size: most rows of a batch; of long rows it has fewer, whose tokens memory bounds.
    """
    order = share(sorted(range(len(rows)), key=lambda row: len(rows[row])))
    most = tokens_at_a_time(model.classifier)
    for chosen in _batches(order, [len(row) for row in rows], batch_size, most):
        ids, mask = pad_right([rows[row] for row in chosen], pad_id)
        with compute.autocast():
            batch = model(ids.to(compute.device), mask.to(compute.device))
        yield list(zip(chosen, batch.float().tolist(), strict=True))


def _batches(
    order: Sequence[int], lengths: Sequence[int], rows: int, tokens: int
) -> Iterator[list[int]]:
    """So many rows, from short to long, as have so many tokens once padded; one at least."""
    batch: list[int] = []
    for row in order:
        if batch and (len(batch) == rows or (len(batch) + 1) * lengths[row] > tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def scores_in_order(batches: Iterable[Sequence[tuple[int, float]]], count: int) -> list[float]:
    """The scores of `count` rows, of all processes, in the rows' order."""
    scores: Tensor = torch.zeros(count)
    for batch in batches:
        places, found = zip(*batch, strict=True)
        scores[list(places)] = torch.tensor(found)
    values: list[float] = total(scores).tolist()
    return values
