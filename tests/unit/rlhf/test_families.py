"""Every family of decoders: each result is the family's own model's, run on one sequence alone."""

import pytest
import torch
from transformers import PreTrainedModel

from rlhf.draws import draw_table
from rlhf.generation import draw_index, sample_responses
from rlhf.logits import OUTPUT_LAYER_ALONE, language_model_head, response_logits, sequence_hidden
from rlhf.padding import pad_left, pad_right
from rlhf.params.sampling import SamplingParams
from rlhf.sft import Example, response_loss
from tests.families import EVERY, policy
from tests.tiny import EOS, PAD, PROMPTS

ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
EACH = pytest.mark.parametrize("family", EVERY)


def padded(prompts=PROMPTS, answers=ANSWERS):
    """Prompts padded left, and answers padded right."""
    return (*pad_left(prompts, PAD), *pad_right(answers, PAD))


def alone(lm: PreTrainedModel, row: list[int]) -> torch.Tensor:
    """The family's own logits (sequence, vocab)."""
    return lm(torch.tensor([row])).logits[0]


@EACH
@torch.no_grad()
def test_logits_of_a_padded_batch_are_the_models_own(assert_close, family):
    lm = policy(family)
    found = response_logits(lm, *padded())
    for row, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        expected = alone(lm, [*prompt, *answer])[len(prompt) - 1 : -1]
        assert_close(found[row, : len(answer)], expected, rtol=0, atol=2e-5)


@torch.no_grad()
def test_some_families_do_more_to_their_logits_than_an_output_layer():
    """Without it the tests above and below could not fail."""
    ids, mask = pad_right(PROMPTS, PAD)
    more = set()
    for family in EVERY:
        lm = policy(family)
        hidden = sequence_hidden(lm.base_model, ids, mask)
        plain, own = lm.get_output_embeddings()(hidden), language_model_head(lm, hidden)
        if (plain - own).abs().max() > 1:
            more.add(family)
    assert more == {"cohere", "cohere2", "gemma2", "gemma3_text", "granite"}
    assert not more & OUTPUT_LAYER_ALONE
    assert set(EVERY) >= OUTPUT_LAYER_ALONE


@EACH
@torch.no_grad()
def test_decoding_with_a_cache_draws_what_the_whole_sequence_says(family):
    """Rows of all lengths, of which some end, and so leave the batch, before others."""
    lm, prompts = policy(family), [[token, *row] for token in (2, 9) for row in PROMPTS]
    settings = SamplingParams(max_new_tokens=9)
    draws = draw_table(3, prompts, settings.max_new_tokens)

    def sampled(end: int):
        ids, mask = pad_left(prompts, PAD)
        return sample_responses(lm, ids, mask, settings, eos_id=end, pad_id=PAD, draws=draws)

    end = int(sampled(-1).response_ids.flatten().bincount().argmax())
    found = sampled(end).rows()
    assert len({len(row) for row in found}) > 2
    for prompt, row, numbers in zip(prompts, found, draws, strict=True):
        own = alone(lm, [*prompt, *row])[len(prompt) - 1 : -1].softmax(dim=-1)
        assert draw_index(own, numbers[: len(row)]).tolist() == row
        assert row.index(end) == len(row) - 1 if end in row else len(row) == len(numbers)


@EACH
def test_the_loss_of_sft_is_the_cross_entropy_of_the_models_own_logits(assert_close, family):
    lm = policy(family)
    examples = [Example(*pair) for pair in zip(PROMPTS, ANSWERS, strict=True)]
    tokens = sum(map(len, ANSWERS))
    expected = torch.zeros(())
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        logprobs = alone(lm, [*prompt, *answer])[len(prompt) - 1 : -1].log_softmax(dim=-1)
        expected = expected - logprobs[range(len(answer)), answer].sum() / tokens
    found = response_loss(lm, examples, tokens=tokens, pad_id=PAD)
    assert_close(found, expected, rtol=0, atol=1e-5)
    weights = [*lm.parameters()]
    mine, theirs = (torch.autograd.grad(loss, weights) for loss in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other, rtol=0, atol=1e-5)
