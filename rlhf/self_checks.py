"""Checks that a real run makes of its models before and after training; errors name the check."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from rlhf.logits import response_logits
from rlhf.lora import MARK, adapter_off
from rlhf.padding import pad_left, pad_right
from rlhf.rollouts import PPOModels
from rlhf.special_ids import SpecialIds
from rlhf.stopping import SelfCheckError

TOLERANCE = 1e-3
"""Largest difference of a score or logit that two paddings may make (float32 gives about 1e-6)."""


def fingerprint(model: nn.Module) -> str:
    """A hash of all weights but an adapter's, to verify that nothing has changed them."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if MARK in name:
            continue
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
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
    wide = [tensor.to(device) for tensor in pad_left([*rows, [tokens.eos] * 99], tokens.pad)]
    if models.reward_model is not None:
        scores = models.reward_model(*narrow)
        shift = (scores - models.reward_model(*wide)[: len(rows)]).abs().max().item()
        if not shift <= TOLERANCE * max(1.0, scores.abs().max().item()):
            raise SelfCheckError(
                f"self-check 'the reward model is invariant to padding' failed: moved by {shift}"
            )
    if starts_at_reference:
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
