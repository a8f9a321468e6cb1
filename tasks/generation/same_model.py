"""Whether a server has the model that it is said to have: its own figures against ours."""

import statistics
from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from rlhf.compute import Compute, Precision
from rlhf.logits import response_logits
from rlhf.logprobs import token_logprobs
from rlhf.padding import pad_left, pad_right
from rlhf.params.sampling import SamplingParams
from rlhf.special_ids import SpecialIds
from tasks.generation.client import Client, Completion
from tasks.running.outcome import StageEnd

PROMPTS = 4
"""How many are asked for the comparison."""
TOKENS = 32
"""Of each response at most."""
LIMITS: Mapping[Precision, float] = {"float32": 0.005, "bfloat16": 0.1}
"""Mean difference of log-probabilities in nats per token above which it is another model. Two
computations of one model differ by their rounding, 1e-5 in float32 and some hundredths in bfloat16;
two policies of neighbouring rounds by tenths."""


@torch.no_grad()
def require_same_model(
    client: Client,
    lm: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: SpecialIds,
    compute: Compute,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
) -> float:
    """Mean difference between the server's log-probabilities and ours, in nats per token.

    At temperature 1 log-probabilities before and after it are the same; at another one the server
    has to give those after it. No more than `max_new_tokens` are asked for, for which the model has
    positions.

    Raises:
        StageEnd: it is above the limit of the precision, or there is none.
    """
    few = prompts[:PROMPTS]
    plain = SamplingParams(temperature=temperature, max_new_tokens=min(TOKENS, max_new_tokens))
    answers = client.complete(few, plain, stop_ids=tokens.stops, seeds=range(len(few)))
    require_known_ids(client, lm, answers)
    batch = [
        tensor.to(compute.device)
        for tensor in (
            *pad_left(few, tokens.pad),
            *pad_right([answer.ids for answer in answers], tokens.pad),
        )
    ]
    with compute.autocast():
        logits = response_logits(lm, *batch)
    ours = token_logprobs(logits, batch[2], temperature=temperature).tolist()
    differences = [
        abs(own - theirs)
        for row, answer in zip(ours, answers, strict=True)
        # A stop id that the server left out has no log-probability, and comes last.
        for own, theirs in zip(row, answer.logprobs, strict=False)
    ]
    if not differences:
        raise StageEnd(
            "bad_input",
            f"{client.key}: {client.address}: nothing to know the model by: all {len(few)} "
            "responses are a stop id alone, of which it gives no log-probability",
        )
    mean, limit = statistics.fmean(differences), LIMITS[compute.precision]
    if not mean <= limit:
        raise StageEnd(
            "bad_input",
            f"{client.key}: {client.address} serves another model as {client.model!r}: "
            f"log-probabilities of {len(differences)} tokens differ by {mean:.3g} nats in the "
            f"mean, expected at most {limit:g} in {compute.precision} (run.precision)"
            + ("" if temperature == 1 else "; or it gives them before the temperature"),
        )
    return mean


def require_known_ids(client: Client, lm: PreTrainedModel, answers: Sequence[Completion]) -> None:
    """Raise StageEnd where a server gave an id that is not in the model's vocabulary."""
    size = lm.get_input_embeddings().weight.shape[0]
    largest = max(max(answer.ids) for answer in answers)
    if largest >= size:
        raise StageEnd(
            "bad_input",
            f"{client.key}: {client.address}: expected token ids below {size}, found {largest}",
        )
