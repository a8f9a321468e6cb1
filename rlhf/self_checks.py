"""Checks that a real run makes of its models before and after training; errors name the check."""

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlhf.compute import in_float32, precision_at_hand
from rlhf.ensembles import members_of
from rlhf.frozen import linear_layers
from rlhf.logits import response_logits
from rlhf.lora import MARK, adapter_off
from rlhf.padding import pad_left, pad_right
from rlhf.positions import table_of_positions
from rlhf.reward_models import RewardModel
from rlhf.rollouts import PPOModels
from rlhf.shapes import AttentionMask, TokenIds
from rlhf.special_ids import SpecialIds
from rlhf.stopping import SelfCheckError

TOLERANCE = 1e-3
"""Largest difference, as a share of the largest score or 1, that two paddings may make in float32,
which makes about 1e-6."""

WIDE = 99
"""Tokens of the row that the others are padded to, where a model has positions for it."""


def fingerprint(model: nn.Module) -> str:
    """A hash of all weights but an adapter's, to verify that nothing has changed them."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if MARK in name:
            continue
        digest.update(name.encode())
        # As bytes: NumPy has no bfloat16.
        digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Frozen(NamedTuple):
    """Fingerprints of the models that a round may not change."""

    reference: str
    reward_model: str | None
    """None where rules alone give the reward."""


def frozen(models: PPOModels) -> Frozen:
    """Fingerprints of the reference and the reward model, to compare with at the end."""
    scorer = models.reward_model
    return Frozen(fingerprint(models.reference), None if scorer is None else fingerprint(scorer))


def check_frozen(models: PPOModels, before: Frozen) -> None:
    """The reference and the reward model have the weights that they had at the start.

    Raises:
        SelfCheckError: one has changed; the message says which.
    """
    for name, old, new in zip(Frozen._fields, before, frozen(models), strict=True):
        if old != new:
            what = name.replace("_", " ")
            raise SelfCheckError(f"self-check 'the {what} is unchanged at the end' failed")


def rounding(model: RewardModel, ids: TokenIds, mask: AttentionMask) -> float:
    """How far rounding alone may move a score of these rows, in the precision at hand.

        4 u sqrt(2 L) s / std        s^2 = sum_i (w_i h_i)^2, the largest among the rows

    The same row in a batch of another shape has its products summed in another order, so a result
    may be rounded up here and down there: a relative difference of u = 2^-8 in bfloat16, which has
    8 bits. A trunk of L blocks adds 2 L such results (attention and MLP) to its residual stream.
    Each brings an error of its own and hands on those before it, and as they are independent their
    squares add up: h differs by u sqrt(2 L) of its size. The score, the sum over i of w_i h_i, then
    differs by that share of s, the size that such a sum has where signs are random. The 4 is what
    remains for the worst of some rows: measured on sound models of six families with 2 to 24
    blocks, the largest difference was 2.1 u sqrt(2 L) s. A model that reads padding differs by
    about s itself.
    """
    used = precision_at_hand(ids.device)
    blocks = model.classifier.config.get_text_config().num_hidden_layers
    terms = model.head.weight[0] * model.last_hidden(ids, mask)
    unit = torch.finfo(used).eps / 2
    size = float(terms.norm(dim=1).max())
    return 4 * unit * math.sqrt(2 * blocks) * size / model.std


class _Moved(NamedTuple):
    """How far padding moves a score, and how far it may."""

    shift: float
    limit: float


def _moved(model: RewardModel, narrow: Sequence[Tensor], wide: Sequence[Tensor]) -> _Moved:
    """Of rows as ids and mask, twice: as narrow as they are, and beside a longer one at the end."""
    scores = model(*narrow)
    shift = (scores - model(*wide)[: len(scores)]).abs().max().item()
    limit = max(TOLERANCE * max(1.0, scores.abs().max().item()), rounding(model, *narrow))
    return _Moved(shift, limit)


@contextlib.contextmanager
def _widened(model: nn.Module) -> Iterator[None]:
    """Inside it layers that were cast (`rlhf.frozen`) have the same numbers in float32."""
    cast = [layer for _, layer in linear_layers(model) if layer.weight.dtype == torch.bfloat16]
    for layer in cast:
        layer.float()
    try:
        yield
    finally:
        for layer in cast:
            layer.bfloat16()


@torch.no_grad()
def check_models(
    models: PPOModels,
    prompts: Sequence[Sequence[int]],
    tokens: SpecialIds,
    *,
    starts_at_reference: bool,
) -> None:
    """Check the models of a round on a few prompts.

    Raises:
        SelfCheckError: the reward model depends on padding; or the policy differs from the
            reference although the round starts from it.
    """
    device = next(models.reference.parameters()).device
    rows = [[*prompt, tokens.eos] for prompt in prompts]
    narrow = [tensor.to(device) for tensor in pad_right(rows, tokens.pad)]
    for member in () if models.reward_model is None else members_of(models.reward_model):
        tokens_of_widest = min(WIDE, table_of_positions(member.classifier) or WIDE)
        longer = [*rows, [tokens.eos] * tokens_of_widest]
        wide = [tensor.to(device) for tensor in pad_left(longer, tokens.pad)]
        moved = _moved(member, narrow, wide)
        if not moved.shift <= moved.limit and precision_at_hand(device) != torch.float32:
            # A mixture takes another expert where a rounding decides which: hardly in float32.
            with _widened(member), in_float32(device):
                moved = _moved(member, narrow, wide)
        if not moved.shift <= moved.limit:
            raise SelfCheckError(
                "self-check 'the reward model is invariant to padding' failed: moved by "
                f"{moved.shift:.2e} (at most {moved.limit:.2e})"
            )
    if starts_at_reference:
        # Equal batches and equal weights give equal bits in every precision.
        ids, mask = (tensor.to(device) for tensor in pad_left(prompts, tokens.pad))
        batch = (ids, mask, ids[:, -1:], torch.ones_like(ids[:, -1:], dtype=torch.bool))
        with adapter_off(models.reference):
            expected = response_logits(models.reference, *batch)
        gap = models.actor(*batch).logits - expected
        if not gap.abs().max().item() <= 1e-6:
            raise SelfCheckError(
                "self-check 'the policy equals the reference at step 0' failed: logits differ by "
                f"{gap.abs().max().item()}"
            )
