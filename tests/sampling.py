"""How tests sample: prompts, policies that end at different tokens, and responses to them."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from rlhf.draws import draw_table
from rlhf.generation import in_order, sample_batches, sample_responses
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from tests import tiny
from tests.tiny import EOS, PAD

GREEDY = {"top_k": 1, "max_new_tokens": 12}


def sample_all(
    lm: PreTrainedModel, prompts: Sequence[Sequence[int]], params: SamplingParams, **settings: Any
) -> list[list[int]]:
    """In the order of the prompts; `settings` are those of `sample_batches`."""
    return in_order(sample_batches(lm, prompts, params, **settings), len(prompts))


def sample(lm, prompts, *, seed: int = 0, stops=(EOS,), **settings):
    params = SamplingParams(**settings)
    return sample_responses(
        lm,
        *pad_left(prompts, PAD),
        params,
        stop_ids=stops,
        pad_id=PAD,
        draws=draw_table(seed, prompts, params.max_new_tokens),
    )


def sample_in_batches(lm, prompts, *, batch_size: int, stops=(EOS,), **settings) -> list[list[int]]:
    params = SamplingParams(**settings)
    return sample_all(
        lm,
        prompts,
        params,
        stop_ids=stops,
        pad_id=PAD,
        batch_size=batch_size,
        draws=draw_table(0, prompts, params.max_new_tokens),
    )


def varied_prompts(count: int = 12) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [torch.randint(2, 16, (size,), generator=generator).tolist() for size in sizes]


def longer_and_shorter(build):
    """Greedy answers of such a model end after different numbers of tokens."""
    lm = build(spread=12.0)
    embeddings = lm.get_input_embeddings().weight.data
    embeddings[EOS] *= 1.2
    return lm


def ending_often():
    """A policy that writes its end token about every third time."""
    lm = tiny.gpt2()
    lm.transformer.ln_f.bias.data += 0.25 * lm.transformer.wte.weight.data[EOS]
    scale = lm.transformer.wte.weight.data[EOS].square().sum()
    lm.transformer.ln_f.bias.data += 2.2 / scale * lm.transformer.wte.weight.data[EOS]
    return lm
