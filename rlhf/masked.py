"""Sums, means and standardisation over the real tokens of a batch.

Nothing behind a mask, not even NaN or infinity, reaches a result or a gradient: values are selected
(`torch.where`), never multiplied by the mask. Sums of half-precision values are taken in float32.

Where we differ from the common code: the variance of `whiten` and `rescale` is the biased one
(divided by n), so that "variance 1" holds exactly on the batch and whitening is idempotent; and
no epsilon is added to it. Values whose spread is only rounding noise count as constant instead.
"""

import torch
from torch import Tensor

from rlhf.shapes import Mask, PerSequence, PerToken, ResponseMask, RowIndex, Scalar, Values
from rlhf.thread_order import ordered_sum

Normaliser = Scalar | float | int | None
"""What a masked sum is divided by: the token count of a whole optimiser step, or None for the count
of the mask at hand."""

ROUNDING_STEPS = 32.0
"""Spread, in units of the machine epsilon of the largest value, that counts as rounding noise."""


class EmptyMaskError(ValueError):
    """A reduction or a row has no real token, so its result would be undefined."""


def masked_sum(values: Values, mask: Mask) -> Scalar:
    """Sum of the values under the mask; 0 where the mask is empty."""
    return ordered_sum(keep(values, mask), accumulation_dtype(values))


def masked_mean(values: Values, mask: Mask, *, normaliser: Normaliser = None) -> Scalar:
    """Sum of the values under the mask, divided by `normaliser` or else by their number.

    Raises:
        EmptyMaskError: there is no value to count.
    """
    return masked_sum(values, mask) / (token_count(mask) if normaliser is None else normaliser)


def masked_variance(values: Values, mask: Mask) -> Scalar:
    """Biased variance (divided by n) of the values under the mask."""
    deviations = keep(values, mask) - masked_mean(values, mask)
    return masked_mean(deviations.square(), mask)


def whiten(values: PerToken, mask: ResponseMask) -> PerToken:
    """Values shifted and scaled to mean 0 and variance 1 over the mask; padding is exactly 0.

    Scope: all tokens given, so whiten the whole rollout, not a minibatch. Constant values become 0.
    """
    return keep(_standardised(values, mask), mask)


def rescale(values: PerToken, mask: ResponseMask) -> PerToken:
    """Values scaled to variance 1 over the mask with their mean kept; padding is exactly 0.

    This is the whitening of rewards in Ziegler et al. 2019: the mean carries the task and stays.
    Constant values stay as they are.
    """
    return keep(_standardised(values, mask) + masked_mean(values, mask), mask)


def sequence_sums(values: PerToken, mask: ResponseMask) -> PerSequence:
    """Sum of the values under the mask in each row; 0 for an empty row."""
    return keep(values, mask).sum(dim=1, dtype=accumulation_dtype(values))


def last_token_index(mask: ResponseMask) -> RowIndex:
    """Position of the last real token of each row, from 0; an empty row raises `EmptyMaskError`."""
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    filled = mask.any(dim=1)
    if not bool(filled.all()):
        rows = (~filled).nonzero().flatten().tolist()
        raise EmptyMaskError(f"expected a real token in every row, found none in rows {rows}")
    return torch.where(mask, positions, -1).amax(dim=1)


def token_count(mask: Mask) -> int:
    """Number of real tokens; raises `EmptyMaskError` where there is none."""
    count = int(mask.sum())
    if count == 0:
        raise EmptyMaskError(f"expected a real token, found none in a mask of {tuple(mask.shape)}")
    return count


def keep(values: Values, mask: Mask) -> Values:
    """Values under the mask, exactly 0 elsewhere; no gradient flows into the padding."""
    return torch.where(mask, values, 0.0)


def noise_floor(values: Values, mask: Mask) -> Scalar:
    """Variance at or below which the values under the mask are constant but for rounding."""
    return _rounding(keep(values, mask).detach().abs().amax())


def noise_floors(groups: Tensor) -> Tensor:
    """The same of each row by itself, (rows, 1)."""
    return _rounding(groups.detach().abs().amax(dim=1, keepdim=True))


def _rounding(largest: Tensor) -> Tensor:
    step = ROUNDING_STEPS * torch.finfo(largest.dtype).eps
    return (step * largest.to(accumulation_dtype(largest))).square()


def accumulation_dtype(values: Tensor) -> torch.dtype:
    """Data type in which to add up the values: float32, or float64 if they have it already."""
    return torch.promote_types(values.dtype, torch.float32)


def _standardised(values: PerToken, mask: ResponseMask) -> PerToken:
    """Centred values over their standard deviation, or 0 where they are constant."""
    variance = masked_variance(values, mask)
    constant = variance <= noise_floor(values, mask)
    scale = torch.where(constant, 0.0, torch.where(constant, 1.0, variance).rsqrt())
    return (keep(values, mask) - masked_mean(values, mask)) * scale
