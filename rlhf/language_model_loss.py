"""The next-token loss of pre-training and of supervised fine-tuning."""

from torch.nn import functional

from rlhf.masked import Normaliser, accumulation_dtype, token_count
from rlhf.picked_logprobs import is_used_for, summed_cross_entropy
from rlhf.shapes import AttentionMask, Scalar, SequenceLogits, TokenIds


def language_model_loss(
    logits: SequenceLogits,
    labels: TokenIds,
    loss_mask: AttentionMask,
    *,
    normaliser: Normaliser = None,
) -> Scalar:
    """Mean of -log p(label) over the tokens under the mask, in nats per token.

    The logits at position t predict the label at position t: the caller has shifted them already
    (`logits[:, :-1]` with `ids[:, 1:]`). Labels behind the mask may be anything. It may lie on the
    host, which asks whether it is True everywhere.
    """
    if bool(loss_mask.all()):
        # Picking all of them would copy the logits, and their gradient into zeros.
        picked, labels = logits.flatten(0, 1), labels.flatten()
    else:
        picked, labels = logits[loss_mask], labels[loss_mask]
    wide = picked.to(accumulation_dtype(picked))
    if is_used_for(wide):
        total = summed_cross_entropy(wide, labels)
    else:
        total = functional.cross_entropy(wide, labels, reduction="sum")
    return total / (token_count(loss_mask) if normaliser is None else normaliser)
