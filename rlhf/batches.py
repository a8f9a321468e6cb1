"""Batches of tensors that belong together, one type for each moment of the algorithm.

A rollout knows scores, a PPO batch knows advantages: a later moment is another type, so no field is
ever None. Every field is a tensor whose first dimension counts the rows. Prompts are padded on the
left, responses on the right; masks are bool, True at real tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from rlhf.distributed import gather
from rlhf.shapes import (
    PerSequence,
    PerSequenceFlag,
    PerToken,
    PromptIds,
    PromptMask,
    ResponseIds,
    ResponseMask,
    RowIndex,
    Rows,
)

# Not `Self`: the shape checker of the tests knows it only in classes that it decorates.
AnyBatch = TypeVar("AnyBatch", bound="TensorBatch")


class BatchShapeError(ValueError):
    """Tensors that should belong together have different numbers of rows or columns."""


@dataclass(frozen=True, kw_only=True)
class TensorBatch:
    """The algebra of batches: length, selection and joining."""

    def __post_init__(self) -> None:
        """Refuse fields with different numbers of rows."""
        rows = {name: value.shape[0] for name, value in self._tensors().items()}
        if len(set(rows.values())) > 1:
            raise BatchShapeError(
                f"{type(self).__name__}: expected equal numbers of rows, found {rows}"
            )

    def __len__(self) -> int:
        """Number of rows."""
        return len(next(iter(self._tensors().values())))

    def select(self: AnyBatch, rows: Rows) -> AnyBatch:
        """The rows with these indices, in their order, or those where a bool mask is True."""
        return self._map(lambda tensor: tensor[rows])

    @classmethod
    def concat(cls: type[AnyBatch], parts: Sequence[AnyBatch]) -> AnyBatch:
        """The rows of all parts in one batch.

        Raises `BatchShapeError` on no parts and on parts whose padded widths differ: a batch
        knows no padding id, so whoever pads does it to one width.
        """
        if not parts:
            raise BatchShapeError(f"{cls.__name__}.concat: expected a part, found none")
        names = [field.name for field in fields(cls)]
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        for name, tensors in columns.items():
            widths = {tuple(tensor.shape[1:]) for tensor in tensors}
            if len(widths) > 1:
                found = sorted(widths)
                raise BatchShapeError(
                    f"{cls.__name__}.concat: expected equal widths of {name}, found {found}"
                )
        return cls(**{name: torch.cat(tensors) for name, tensors in columns.items()})

    def of_all_processes(self: AnyBatch) -> AnyBatch:
        """The rows of all processes, those of the first before the others'; all of one width."""
        return self._map(gather)

    def _tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _map(self: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
        return type(self)(**{name: change(tensor) for name, tensor in self._tensors().items()})


@dataclass(frozen=True, kw_only=True)
class Rollout(TensorBatch):
    """Responses sampled from the policy, scored by all four models, before any shaping."""

    prompt_ids: PromptIds
    prompt_mask: PromptMask
    response_ids: ResponseIds
    response_mask: ResponseMask
    logprobs: PerToken
    """Of the sampled tokens under the policy."""
    sampler_logprobs: PerToken
    """The same as who sampled them says: those of the policy itself, or a server's."""
    ref_logprobs: PerToken
    values: PerToken
    scores: PerSequence
    ended: PerSequenceFlag
    """Whether the response has its end token (or was cut off)."""


@dataclass(frozen=True, kw_only=True)
class PPOBatch(TensorBatch):
    """What the PPO update reads: the tokens of a rollout and what was made of its scores."""

    prompt_ids: PromptIds
    prompt_mask: PromptMask
    response_ids: ResponseIds
    response_mask: ResponseMask
    old_logprobs: PerToken
    ref_logprobs: PerToken
    old_values: PerToken
    advantages: PerToken
    returns: PerToken

    def masks(self) -> "HostMasks":
        """Which tokens are real, where the host can ask without waiting for the device again."""
        return HostMasks(prompt=self.prompt_mask.cpu(), response=self.response_mask.cpu())

    def trimmed(self, masks: "HostMasks") -> "PPOBatch":
        """The same tokens without the columns that are padding in every row, by its own masks."""
        first, width = masks.columns()
        return PPOBatch(
            prompt_ids=self.prompt_ids[:, first:],
            prompt_mask=self.prompt_mask[:, first:],
            response_ids=self.response_ids[:, :width],
            response_mask=self.response_mask[:, :width],
            old_logprobs=self.old_logprobs[:, :width],
            ref_logprobs=self.ref_logprobs[:, :width],
            old_values=self.old_values[:, :width],
            advantages=self.advantages[:, :width],
            returns=self.returns[:, :width],
        )


@dataclass(frozen=True, kw_only=True)
class HostMasks(TensorBatch):
    """Which tokens of a batch are real; on the host, whatever device the batch is on."""

    prompt: PromptMask
    response: ResponseMask

    def lengths(self) -> RowIndex:
        """Real tokens of each row, prompt and response together."""
        return self.prompt.sum(dim=1) + self.response.sum(dim=1)

    def columns(self) -> tuple[int, int]:
        """The first column in which a prompt has a token, and behind the last of a response."""
        prompts, responses = self.prompt.any(dim=0).tolist(), self.response.any(dim=0).tolist()
        first = prompts.index(True) if True in prompts else 0
        width = len(responses) - responses[::-1].index(True) if True in responses else 0
        return first, width

    def trimmed(self) -> "HostMasks":
        """Without the columns that are padding in every row."""
        first, width = self.columns()
        return HostMasks(prompt=self.prompt[:, first:], response=self.response[:, :width])
