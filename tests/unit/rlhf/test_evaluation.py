"""The measures on held-out prompts: answers, exact KL, diversity."""

import itertools

import pytest
import torch

from rlhf.evaluation import distinct_ngrams, kl_to_reference
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.sampling import SamplingParams
from rlhf.responses import respond
from tests import tiny
from tests.tiny import COMPUTE, EOS, PROMPTS, TOKENS

ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]


def params(batch_size: int = 3, **sampling) -> EvaluateParams:
    settings = {"max_new_tokens": 4, **sampling}
    return EvaluateParams(batch_size=batch_size, sampling=SamplingParams(**settings))


def kl(policy, reference, *, batch_size: int = 3, temperature: float = 1.0) -> list[float]:
    settings = params(batch_size, temperature=temperature)
    return kl_to_reference(policy, reference, PROMPTS, ANSWERS, settings, TOKENS, compute=COMPUTE)


def responses(policy, prompts, settings: EvaluateParams, seed: int = 0) -> list[list[int]]:
    return respond(
        policy, prompts, settings.sampling, TOKENS,
        batch_size=settings.batch_size, compute=COMPUTE, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@torch.no_grad()
def test_s60_the_kl_of_a_response_is_the_sum_over_its_tokens_and_the_whole_vocabulary(
    assert_close, temperature
):
    """Sequence by sequence without padding, from transformers' own forward pass."""
    policy, reference = tiny.llama(0), tiny.llama(1)
    expected = []
    for prompt, answered in zip(PROMPTS, ANSWERS, strict=True):
        ids, before = torch.tensor([[*prompt, *answered]]), slice(len(prompt) - 1, -1)
        log_p, log_q = (
            (lm(ids).logits[0, before] / temperature).log_softmax(-1).double()
            for lm in (policy, reference)
        )
        expected.append((log_p.exp() * (log_p - log_q)).sum().item())
    assert min(expected) > 0.01
    found = kl(policy, reference, temperature=temperature)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_no_padding_goes_through_a_head_and_rows_of_like_length_share_a_batch():
    lms, heads, widths = (tiny.llama(0), tiny.llama(1)), [], []
    for lm in lms:
        lm.get_output_embeddings().register_forward_pre_hook(
            lambda _, given: heads.append(given[0].shape[:-1].numel())
        )
        lm.base_model.embed_tokens.register_forward_pre_hook(
            lambda _, given: widths.append(given[0].shape[-1])
        )
    kl(*lms, batch_size=1)
    alone = sum(widths)
    widths.clear()
    heads.clear()

    kl(*lms, batch_size=2)

    assert sum(heads) == len(lms) * sum(map(len, ANSWERS))
    lengths = sorted(len(p) + len(a) for p, a in zip(PROMPTS, ANSWERS, strict=True))
    assert alone == 2 * sum(lengths)
    assert widths[0] < max(lengths)


def test_s11_a_policy_has_no_kl_to_itself(assert_close):
    assert_close(kl(tiny.llama(), tiny.llama()), [0.0] * 4, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_the_batch_size_changes_no_kl(assert_close, batch_size):
    policy, reference = tiny.llama(0), tiny.llama(1)
    expected = kl(policy, reference, batch_size=99)
    assert_close(kl(policy, reference, batch_size=batch_size), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s12_the_kl_of_sampled_responses_is_the_kl_between_the_distributions_over_responses():
    """Answers of at most two tokens can all be summed over: 1 + 15 * 16 of them."""
    policy, reference, prompt = tiny.gpt2(0), tiny.gpt2(1), [5, 6]
    exact = 0.0
    for answered in all_answers():
        ids, before = torch.tensor([[*prompt, *answered]]), slice(len(prompt) - 1, -1)
        log_p, log_q = (
            lm(ids).logits[0, before].log_softmax(-1)[range(len(answered)), answered].sum().item()
            for lm in (policy, reference)
        )
        exact += torch.tensor(log_p).exp().item() * (log_p - log_q)
    settings = params(1000, temperature=1.0, max_new_tokens=2)
    prompts = [prompt] * 2000
    rows = responses(policy, prompts, settings)
    sampled = torch.tensor(
        kl_to_reference(policy, reference, prompts, rows, settings, TOKENS, compute=COMPUTE)
    )
    error = sampled.std() / len(sampled) ** 0.5
    assert 0 < error < 0.05 * exact
    assert abs(sampled.mean() - exact) <= 3 * error


def all_answers() -> list[list[int]]:
    others = [token for token in range(tiny.VOCABULARY) if token != EOS]
    pairs = itertools.product(others, range(tiny.VOCABULARY))
    return [[EOS], *([first, second] for first, second in pairs)]


def test_s57_responses_depend_on_the_seed_and_on_nothing_else():
    def rows(seed: int) -> list[list[int]]:
        return responses(tiny.gpt2(), PROMPTS, params(), seed)

    torch.manual_seed(1)
    first = rows(0)
    torch.manual_seed(2)
    assert rows(0) == first
    assert rows(1) != first


def test_s57_policies_that_hardly_differ_hardly_differ_in_their_responses():
    """They are paired: where one response ends earlier, the others are drawn as before."""

    def rows(temperature: float, seed: int = 0) -> list[list[int]]:
        settings = params(8, max_new_tokens=6, temperature=temperature)
        return responses(tiny.gpt2(), prompts, settings, seed)

    def equal(others: list[list[int]]) -> int:
        return sum(one == other for one, other in zip(first, others, strict=True))

    prompts = [[one, two, three] for one in range(2, 9) for two in range(2, 9) for three in (2, 3)]
    first = rows(1.0)
    assert len(prompts) * 0.8 < equal(rows(1.01)) < len(prompts)
    assert equal(rows(1.0, seed=1)) < len(prompts) * 0.2


def test_s60_distinct_n_is_the_share_of_different_n_grams():
    texts = ["the cat sat", "the cat ran home", "so"]
    assert distinct_ngrams(texts, 1) == 6 / 8
    assert distinct_ngrams(texts, 2) == 4 / 5
    assert distinct_ngrams(texts, 3) == 3 / 3


def test_s60_an_n_gram_does_not_run_from_one_text_into_the_next():
    assert distinct_ngrams(["a b", "a b"], 2) == 1 / 2
    assert distinct_ngrams(["a", "b"], 2) == 0.0


def test_s60_a_text_that_repeats_itself_has_few_distinct_n_grams():
    assert distinct_ngrams(["ha " * 101], 2) == 1 / 100
