"""Measuring a policy on held-out prompts: exact KL to the reference, diversity."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from rlhf.compute import Compute
from rlhf.distributed import share, totals
from rlhf.kl import full_kl
from rlhf.logits import before_response, language_model_head
from rlhf.masked import sequence_sums
from rlhf.padding import pad_left, pad_right
from rlhf.params.evaluate import EvaluateParams
from rlhf.special_ids import SpecialIds
from rlhf.token_chunks import chunked


@torch.no_grad()
def kl_to_reference(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    params: EvaluateParams,
    tokens: SpecialIds,
    *,
    compute: Compute,
) -> list[float]:
    """KL(policy || reference) of each response, in nats, exact over the vocabulary at every token.

    Summed over the tokens of responses that the policy sampled: an unbiased estimate of the KL
    between the two distributions over responses, with less noise than log-ratios. That needs plain
    sampling (`SamplingParams.is_plain`): otherwise the responses are of another distribution.
    """
    temperature = params.sampling.temperature

    def read(hidden: torch.Tensor, ref_hidden: torch.Tensor) -> torch.Tensor:
        logits = language_model_head(policy, hidden)
        ref_logits = language_model_head(reference, ref_hidden)
        return full_kl(logits, ref_logits, temperature=temperature)

    result = [0.0] * len(prompts)
    # Rows of like length together: little of a batch is padding, and none goes through a head.
    lengths = [len(both[0]) + len(both[1]) for both in zip(prompts, responses, strict=True)]
    ours = share(sorted(range(len(prompts)), key=lengths.__getitem__))
    for start in range(0, len(ours), params.batch_size):
        rows = ours[start : start + params.batch_size]
        prompt_ids, prompt_mask = pad_left([prompts[row] for row in rows], tokens.pad)
        padded = pad_right([responses[row] for row in rows], tokens.pad)
        ids, mask = (tensor.to(compute.device) for tensor in padded)
        # On the host, what is to be read makes no device wait.
        only = padded[1]
        batch = (prompt_ids.to(compute.device), prompt_mask.to(compute.device), ids, mask)
        with compute.autocast():
            hidden = [before_response(lm.base_model, batch) for lm in (policy, reference)]
            divergence = chunked(policy, read, only, *hidden)
        for row, value in zip(rows, sequence_sums(divergence, mask).tolist(), strict=True):
            result[row] = value
    return totals(result)


def distinct_ngrams(texts: Sequence[str], n: int) -> float:
    """Share of different word n-grams among all of them, 0 to 1 (Li et al. 2016)."""
    grams = [
        tuple(words[i : i + n])
        for words in (text.split() for text in texts)
        for i in range(len(words) - n + 1)
    ]
    return len(set(grams)) / len(grams) if grams else 0.0
