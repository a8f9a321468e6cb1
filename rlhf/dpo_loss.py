"""The loss of direct preference optimisation (DPO): Bradley-Terry on what the policy implies."""

from typing import NamedTuple

from rlhf.preference_loss import PreferenceLoss, preference_loss
from rlhf.shapes import PerSequence


class PairLogprobs(NamedTuple):
    """Log-probabilities of whole responses, sums over their tokens, in nats."""

    chosen: PerSequence
    rejected: PerSequence


def dpo_loss(
    policy: PairLogprobs,
    reference: PairLogprobs,
    *,
    beta: float,
    weights: PerSequence | None = None,
    soft_labels: PerSequence | None = None,
) -> PreferenceLoss:
    """Direct preference optimisation (Rafailov et al. 2023, eq. 7).

        r(y) = β (log π(y|x) - log π_ref(y|x))
        L = -log σ(r(chosen) - r(rejected))

    Bradley-Terry on rewards r that the policy itself implies; accuracy and margin are of r. With
    soft labels and weights as in `preference_loss`. The reference gets no gradient.
    """
    return preference_loss(
        beta * (policy.chosen - reference.chosen.detach()),
        beta * (policy.rejected - reference.rejected.detach()),
        weights=weights,
        soft_labels=soft_labels,
    )
