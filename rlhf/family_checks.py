"""Whether a policy can do all that the pipeline will ask of it, found out on a prompt in seconds.

`transformers` has hundreds of architectures. What the stages do with a model, some of it late in a
run (score padded rows, decode with a cache, carry a reward head), is tried here, and compared with
what the model itself says of each sequence alone.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.actor_critic import build_actor_critic
from rlhf.decoding_cache import decoding_cache
from rlhf.generation import next_logits
from rlhf.logits import language_model_head, sequence_hidden
from rlhf.padding import pad_left, pad_right
from rlhf.reward_heads import build_classifier
from rlhf.reward_models import RewardModel

TOLERANCE = 1e-3
"""Largest difference, as a share of the largest value or 1 (float32 gives about 1e-6)."""

LONGEST = 256
"""Tokens of a prompt that are read, from its end: enough to see, and little to compute."""

DECODED = 4
"""Tokens of each row that are read one at a time."""

Rows = Sequence[Sequence[int]]


class UnsupportedModelError(ValueError):
    """The model cannot do what the pipeline needs; the message says what."""


@torch.no_grad()
def check_policy(lm: PreTrainedModel, prompts: Rows) -> None:
    """Try everything on a few prompts, as token ids, and on half of one, which has to be padded.

    Raises:
        UnsupportedModelError: a result differs from the model's own, or the model's code fails.
    """
    positions = getattr(lm.config.get_text_config(), "max_position_embeddings", LONGEST)
    longest = min(LONGEST, positions - DECODED)
    cut = [list(prompt[-longest:]) for prompt in prompts]
    cut.append(cut[0][len(cut[0]) // 2 :])
    rows = [[*row, *(row * DECODED)[:DECODED]] for row in cut]
    _require_embeddings(lm, max(token for row in rows for token in row))
    own = [_own_logits(lm, row) for row in rows]
    if not all(bool(logits.isfinite().all()) for logits in own):
        raise UnsupportedModelError("its logits are not finite: the weights are broken")
    for claim, gaps in CHECKS:
        try:
            found = torch.tensor(gaps(lm, rows, own)).max().item()
        except UnsupportedModelError:
            raise
        except Exception as error:  # The code of an architecture raises what it likes.
            reason = next(iter(str(error).splitlines()), "")
            raise UnsupportedModelError(
                f"a {type(lm).__name__} fails where {claim}: {type(error).__name__}: {reason}"
            ) from error
        if not found <= TOLERANCE:
            raise UnsupportedModelError(
                f"a {type(lm).__name__} does not do what is needed here: {claim}, but there is a "
                f"difference of {found:.1e} (at most {TOLERANCE:.0e})"
            )


def words_beyond(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Words that a tokenizer was given later, and the model has no embeddings for.

    Published models have some that never occur in text (Gemma 3's stands for a picture).

    Raises:
        UnsupportedModelError: words of its own are among those without.
    """
    added, size = tokenizer.get_added_vocab(), _embeddings(lm)
    own = [token for word, token in tokenizer.get_vocab().items() if word not in added]
    _require_embeddings(lm, max(own, default=0))
    return [word for word, token in added.items() if token >= size]


def _embeddings(lm: PreTrainedModel) -> int:
    return int(lm.get_input_embeddings().weight.shape[0])


def _require_embeddings(lm: PreTrainedModel, largest: int) -> None:
    size = _embeddings(lm)
    if largest >= size:
        raise UnsupportedModelError(
            f"the tokenizer gives id {largest}, but the model has embeddings for {size} ids only; "
            "they do not belong together"
        )


def _own_logits(lm: PreTrainedModel, row: Sequence[int]) -> Tensor:
    logits: Tensor = lm(**_by_itself(row, lm.device), use_cache=False).logits[0].float()
    return logits


def _by_itself(row: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """What a model reads; without the mask OPT adds up positions in floating point.

    For that a GPU has no deterministic algorithm.
    """
    ids = torch.tensor([row], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _repeated(lm: PreTrainedModel, rows: Rows, own: Sequence[Tensor]) -> list[float]:
    return [_gap(_own_logits(lm, rows[0]), own[0])]


def _alone(lm: PreTrainedModel, rows: Rows, own: Sequence[Tensor]) -> list[float]:
    found = [_logits(lm, pad_right([row], 0))[0] for row in rows]
    return [_gap(*pair) for pair in zip(found, own, strict=True)]


def _padded(lm: PreTrainedModel, rows: Rows, own: Sequence[Tensor]) -> list[float]:
    gaps = []
    for ids, mask in (pad_left(rows, 0), pad_right(rows, 0)):
        found = _logits(lm, (ids, mask))
        gaps += [_gap(found[n][mask[n]], expected) for n, expected in enumerate(own)]
    return gaps


def _decoded(lm: PreTrainedModel, rows: Rows, own: Sequence[Tensor]) -> list[float]:
    """All but the last tokens of each row at once, then one by one, the first row leaving."""
    ids, mask = (tensor.to(lm.device) for tensor in pad_left(rows, 0))
    cache, kept, gaps = decoding_cache(lm, ids.shape[1]), list(range(len(rows))), []
    seen, step = mask[:, :-DECODED], torch.where(mask, ids, 0)[:, :-DECODED]
    for left in range(DECODED, 0, -1):
        logits = next_logits(lm, step, seen, cache)
        gaps += [_gap(logits[n], own[row][-left - 1]) for n, row in enumerate(kept)]
        if left == DECODED and len(rows) > 1:
            kept = kept[1:]
            cache.batch_select_indices(torch.tensor(kept, device=lm.device))
        seen, step = mask[kept, : mask.shape[1] - left + 1], ids[kept][:, [-left]]
    return gaps


def _scored(lm: PreTrainedModel, rows: Rows, own: Sequence[Tensor]) -> list[float]:
    """A reward head on the policy's own trunk, against the classifier's own forward pass."""
    del own
    config = copy.deepcopy(lm.config)
    config.num_labels = 1
    config.get_text_config().pad_token_id = None  # It then reads the last token of a single row.
    with torch.device("meta"):
        classifier = build_classifier(config)
    trunk = lm.base_model
    shapes = [
        {name: weight.shape for name, weight in part.state_dict().items()}
        for part in (classifier.base_model, trunk)
    ]
    if shapes[0] != shapes[1]:
        odd = sorted(shapes[0].items() ^ shapes[1].items())[0][0]
        raise UnsupportedModelError(f"a {type(classifier).__name__} has another trunk ({odd})")
    setattr(classifier, classifier.base_model_prefix, trunk)
    model = RewardModel(classifier)
    model.head.to_empty(device=lm.device)
    for weight in model.head.parameters():
        weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
    model.eval()
    alone = torch.cat([classifier(**_by_itself(row, lm.device)).logits[0] for row in rows])
    gaps = []
    for padded in (pad_left(rows, 0), pad_right(rows, 0)):
        ids, mask = (tensor.to(lm.device) for tensor in padded)
        gaps.append(_gap(model.raw_scores(ids, mask), alone))
    return gaps


def _valued(lm: PreTrainedModel, rows: Rows, own: Sequence[Tensor]) -> list[float]:
    """Policy and value function in one pass: the model's logits, and values that start at zero."""
    actor = build_actor_critic(lm, reward_model=None, separate=False)
    prompts, answers = ([row[part] for row in rows] for part in (slice(-1), slice(-1, None)))
    batch = [tensor.to(lm.device) for tensor in (*pad_left(prompts, 0), *pad_right(answers, 0))]
    output = actor(*batch)
    gaps = [_gap(output.logits[n, 0], expected[-2]) for n, expected in enumerate(own)]
    return [*gaps, output.values.abs().max().item()]


CHECKS: tuple[tuple[str, Callable[[PreTrainedModel, Rows, Sequence[Tensor]], list[float]]], ...] = (
    ("the same sequence gives the same logits again", _repeated),
    ("logits come from its hidden states", _alone),
    ("padding on either side changes no logit", _padded),
    ("decoding with a cache gives the logits of the whole sequence", _decoded),
    ("a reward head reads its last hidden state", _scored),
    ("a value head reads its hidden states", _valued),
)


def _logits(lm: PreTrainedModel, padded: tuple[Tensor, Tensor]) -> Tensor:
    ids, mask = (tensor.to(lm.device) for tensor in padded)
    return language_model_head(lm, sequence_hidden(lm.base_model, ids, mask))


def _gap(found: Tensor, expected: Tensor) -> float:
    scale = max(1.0, expected.abs().max().item())
    return (found.float() - expected.float()).abs().max().item() / scale
