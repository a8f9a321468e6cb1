"""Sampling: the right distribution, the right stop, and rows that do not depend on each other."""

import math
from bisect import bisect_right
from fractions import Fraction
from functools import partial
from itertools import accumulate

import pytest
import torch

from rlhf import generation
from rlhf.draws import draw_table
from rlhf.generation import (
    prompt_parts,
    sample_responses,
)
from rlhf.masked import EmptyMaskError
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from rlhf.stopping import NonFiniteError
from rlhf.token_draws import draw_index, filter_logits
from tests import tiny
from tests.sampling import sample_all
from tests.tiny import EOS, PAD, PROMPTS

BOTH = pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])
NO = -math.inf
GREEDY = {"top_k": 1, "max_new_tokens": 12}


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


def frequencies(tokens: torch.Tensor) -> torch.Tensor:
    return torch.bincount(tokens, minlength=tiny.VOCABULARY) / len(tokens)


def assert_within_three_standard_errors(tokens: torch.Tensor, expected: torch.Tensor) -> None:
    """For the tokens expected 20 times or more, where the error is close to normal."""
    assert frequencies(tokens)[expected == 0].sum() == 0
    often = expected * len(tokens) >= 20
    assert expected[often].sum() > 0.5
    errors = (expected * (1 - expected) / len(tokens)).sqrt()
    assert ((frequencies(tokens) - expected).abs() <= 3 * errors)[often].all()


def test_s39_a_prompt_without_a_token_is_refused():
    with pytest.raises(EmptyMaskError, match=r"none in rows \[1\]"):
        sample(tiny.llama(), [[5, 6], []], max_new_tokens=2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_policy_with_a_broken_weight_samples_nothing(bad):
    lm = tiny.llama()
    lm.model.norm.weight.data[0] = bad
    with pytest.raises(NonFiniteError, match="logits are not finite"):
        sample(lm, PROMPTS, max_new_tokens=2)


# --- the filters -------------------------------------------------------------------------------

# Logits and results of openai/lm-human-preferences, test_core_utils.py (MIT), which marks a token
# that is filtered out by -1e10.
PUBLISHED = [1.0, 1.01, 1.001, 0.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 2, "top_p": 1.0}, [NO, 1.01, NO, NO, NO, NO, 2.0]),
        ({"top_k": 3, "top_p": 1.0}, [NO, 1.01, 1.001, NO, NO, NO, 2.0]),
        ({"top_k": 0, "top_p": 0.0}, [NO, NO, NO, NO, NO, NO, 2.0]),
    ],
)
def test_the_filters_keep_what_openai_published(settings, expected):
    found = filter_logits(torch.tensor([PUBLISHED, PUBLISHED[::-1]]), **settings)
    assert torch.equal(found, torch.tensor([expected, expected[::-1]]))


@pytest.mark.parametrize(
    ("top_p", "openai", "next_token"),
    [
        (0.7, [NO, 1.01, 1.001, NO, NO, NO, 2.0], 0),
        (0.6, [NO, 1.01, NO, NO, NO, NO, 2.0], 2),
        (0.5, [NO, NO, NO, NO, NO, NO, 2.0], 1),
    ],
)
def test_top_p_keeps_one_token_more_than_openai_the_one_that_takes_the_sum_to_p(
    top_p, openai, next_token
):
    """Holtzman et al. 2020, eq. 2: the sum is at least p. OpenAI's set of 2019 stays below p."""
    expected = openai.copy()
    assert expected[next_token] == NO
    expected[next_token] = PUBLISHED[next_token]
    found = filter_logits(torch.tensor([PUBLISHED]), top_k=0, top_p=top_p)
    assert torch.equal(found, torch.tensor([expected]))
    probabilities = torch.tensor(PUBLISHED).softmax(0)
    assert (
        probabilities[torch.tensor(openai) > NO].sum() < top_p <= probabilities[found[0] > NO].sum()
    )


def test_s05_without_filters_the_logits_stay_as_they_are():
    logits = torch.tensor([PUBLISHED])
    assert torch.equal(filter_logits(logits, top_k=0, top_p=1.0), logits)


@pytest.mark.parametrize("top_p", [0.1, 0.45, 0.5, 0.9, 0.99])
def test_top_p_keeps_the_likeliest_tokens_up_to_about_p(top_p):
    """Without the last token kept the sum is at most p, with the next one at least p."""
    logits = torch.randn(20, 16, generator=torch.Generator().manual_seed(0)) * 2
    kept = filter_logits(logits, top_k=0, top_p=top_p) > NO
    for probabilities, chosen in zip(logits.softmax(-1), kept, strict=True):
        ordered = probabilities.sort(descending=True).values
        count = int(chosen.sum())
        assert probabilities[chosen].min() == ordered[count - 1]
        assert count == 1 or ordered[: count - 1].sum() <= top_p + 1e-6
        assert ordered[: count + 1].sum() >= top_p - 1e-6


def test_top_k_beyond_the_vocabulary_keeps_everything():
    logits = torch.tensor([PUBLISHED])
    assert torch.equal(filter_logits(logits, top_k=99, top_p=1.0), logits)


def test_both_filters_together_keep_what_both_keep():
    found = filter_logits(torch.tensor([PUBLISHED]), top_k=3, top_p=0.5)
    assert torch.equal(found, torch.tensor([[NO] * 6 + [2.0]]))


# --- the distribution --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.8])
@torch.no_grad()
def test_s05_tokens_are_drawn_from_the_softmax_at_the_temperature(temperature):
    lm = tiny.gpt2()
    prompt = [5, 6, 7]
    found = sample(lm, [prompt] * 4000, temperature=temperature, max_new_tokens=1)
    expected = (lm(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(0)
    assert_within_three_standard_errors(found.response_ids[:, 0], expected)


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.2500001, 0.9999999, 1 - 2**-53])
def test_s05_a_draw_is_the_first_token_whose_cumulated_probability_exceeds_the_uniform_number(
    uniform,
):
    rows = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    drawn = draw_index(rows, torch.tensor([uniform, uniform], dtype=torch.float64)).tolist()
    assert drawn == [1 if uniform < 0.25 else 3, 2]


def test_s05_each_row_is_drawn_with_its_own_number():
    rows = torch.tensor([[0.5, 0.5]] * 3)
    assert draw_index(rows, torch.tensor([0.4, 0.6, 0.1], dtype=torch.float64)).tolist() == [
        0,
        1,
        0,
    ]


def test_s05_no_draw_leaves_the_row_where_rounding_leaves_the_sum_short_of_one():
    row = torch.full((1, 3), 0.3333)
    assert draw_index(row, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [2]


def test_s05_no_draw_leaves_the_row_where_the_sum_exceeds_one():
    """As a softmax's sum does in every second row; the product is then rounded to the total."""
    row = torch.tensor([[0.5, 0.5 + 2**-20, 0.0]])
    assert draw_index(row, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [1]


def test_s05_draws_are_those_of_exact_arithmetic():
    """Cumulated probabilities as fractions, on rows of a real vocabulary's size."""
    logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(0)) * 3
    probabilities = logits.softmax(dim=-1)
    uniform = draw_table(0, [[row] for row in range(40)], 1)[:, 0]
    for row, number, index in zip(
        probabilities.tolist(), uniform.tolist(), draw_index(probabilities, uniform), strict=True
    ):
        sums = list(accumulate(map(Fraction, row)))
        assert index == bisect_right(sums, Fraction(number) * sums[-1])


def test_s05_draws_follow_the_probabilities_and_never_fall_on_an_impossible_token():
    """Chi-square of 50,000 draws: below its 99.9 % quantile at 4 degrees of freedom."""
    row = torch.tensor([0.0, 0.4, 0.0, 0.3, 0.2, 0.09, 0.01, 0.0])
    uniform = draw_table(5, [[3]] * 500, 100).flatten()
    counts = torch.bincount(draw_index(row.expand(len(uniform), -1), uniform), minlength=8)
    possible = row > 0
    assert counts[~possible].sum() == 0
    expected = row[possible] * len(uniform)
    assert ((counts[possible] - expected).square() / expected).sum() < 18.47


@torch.no_grad()
def test_s05_later_tokens_are_drawn_given_the_row_after_other_rows_have_left():
    """Half the rows or so end at the first token; the cache must follow those that stay."""
    lm = ending_often()
    prompts = [PROMPTS[row % 2] for row in range(6000)]
    found = sample(lm, prompts, max_new_tokens=2)
    assert 0.2 < found.ended.float().mean() < 0.9
    for row, prompt in enumerate(PROMPTS[:2]):
        ids, mask = found.response_ids[row::2], found.response_mask[row::2]
        first = int(frequencies(ids[:, 0])[2:].argmax()) + 2
        second = ids[(ids[:, 0] == first) & mask[:, 1], 1]
        assert len(second) > 100
        expected = lm(torch.tensor([[*prompt, first]])).logits[0, -1].softmax(0)
        assert_within_three_standard_errors(second, expected)


def ending_often():
    """A policy that writes its end token about every third time."""
    lm = tiny.gpt2()
    lm.transformer.ln_f.bias.data += 0.25 * lm.transformer.wte.weight.data[EOS]
    scale = lm.transformer.wte.weight.data[EOS].square().sum()
    lm.transformer.ln_f.bias.data += 2.2 / scale * lm.transformer.wte.weight.data[EOS]
    return lm


@torch.no_grad()
def test_top_p_draws_from_the_kept_tokens_in_their_proportions():
    lm, prompt = tiny.gpt2(), [5, 6, 7]
    found = sample(lm, [prompt] * 4000, top_p=0.6, temperature=1.0, max_new_tokens=1)
    logits = filter_logits(lm(torch.tensor([prompt])).logits[:, -1], top_k=0, top_p=0.6)
    kept = int((logits > NO).sum())
    assert 1 < kept < 16
    assert_within_three_standard_errors(found.response_ids[:, 0], logits[0].softmax(0))


# --- greedy, against transformers and against each row alone ------------------------------------


@BOTH
@torch.no_grad()
def test_s04_greedy_answers_are_those_of_transformers_generate(build):
    lm, prompts = longer_and_shorter(build), varied_prompts(24)
    ids, mask = pad_left(prompts, PAD)
    theirs = lm.generate(
        ids,
        attention_mask=mask.long(),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )[:, ids.shape[1] :]
    ours = sample(lm, prompts, **GREEDY)
    assert len(set(ours.response_mask.sum(dim=1).tolist())) > 2
    assert torch.equal(ours.response_ids, theirs)


def longer_and_shorter(build):
    """Greedy answers of such a model end after different numbers of tokens."""
    lm = build(spread=12.0)
    embeddings = lm.get_input_embeddings().weight.data
    embeddings[EOS] *= 1.2
    return lm


@BOTH
@torch.no_grad()
def test_s04_an_answer_is_the_same_alone_and_among_rows_that_finish_earlier(build):
    lm, prompts = longer_and_shorter(build), varied_prompts()
    together = sample(lm, prompts, **GREEDY).rows()
    assert together == [sample(lm, [prompt], **GREEDY).rows()[0] for prompt in prompts]


@BOTH
@torch.no_grad()
def test_s02_left_padding_changes_no_greedy_answer(build):
    lm, prompts = longer_and_shorter(build), varied_prompts()
    wide = sample(lm, [*prompts, [3] * 20], **GREEDY).rows()[:-1]
    assert wide == sample(lm, prompts, **GREEDY).rows()


# --- the end -----------------------------------------------------------------------------------


@torch.no_grad()
def test_s06_generation_stops_at_any_of_several_ids():
    """Each row is that of a policy that never stops, up to the first of them."""
    lm, prompts, stops = tiny.llama(), varied_prompts(64), (EOS, 6, 9)
    endless = sample(lm, prompts, stops=(99,), max_new_tokens=12)
    found = sample(lm, prompts, stops=stops, max_new_tokens=12)
    assert endless.ended.sum() == 0
    reached = set()
    for whole, row, ended in zip(endless.rows(), found.rows(), found.ended.tolist(), strict=True):
        places = [place for place, token in enumerate(whole) if token in stops]
        assert row == (whole[: places[0] + 1] if places else whole)
        assert ended == bool(places)
        reached |= {row[-1]} if ended else {None}
    assert reached == {*stops, None}
    batches = sample_in_batches(lm, prompts, batch_size=9, stops=stops, max_new_tokens=12)
    assert batches == found.rows()


def test_none_of_several_stop_ids_comes_before_the_least_length():
    rows = sample(tiny.llama(), varied_prompts(64), stops=(EOS, 6, 9), min_new_tokens=3,
                  max_new_tokens=12).rows()  # fmt: skip
    assert {token for row in rows for token in row[:3]}.isdisjoint({EOS, 6, 9})
    assert {row[-1] for row in rows} > {EOS, 6, 9}


def test_s06_the_first_end_token_is_kept_and_everything_behind_it_is_padding():
    """Peer defect 1: the end token must stay inside the mask."""
    found = sample(ending_often(), varied_prompts(200), max_new_tokens=6)
    lengths = found.response_mask.sum(dim=1)
    assert set(lengths.tolist()) == {1, 2, 3, 4, 5, 6}
    for ids, mask, length, ended in zip(
        found.response_ids, found.response_mask, lengths.tolist(), found.ended, strict=True
    ):
        assert mask[:length].all()
        assert (ids[length:] == PAD).all()
        assert EOS not in ids[: length - 1]
        assert bool(ids[length - 1] == EOS) is bool(ended)


@torch.no_grad()
def test_s08_an_answer_that_was_cut_has_no_end_token_and_says_so():
    """Peer defect 8: no end token is written over the last one of an answer that is too long."""
    found = sample(ending_often(), varied_prompts(200), max_new_tokens=3)
    cut = ~found.ended
    assert 0 < cut.sum() < 200
    assert (found.response_mask[cut].sum(dim=1) == 3).all()
    assert not (found.response_ids[cut] == EOS).any()


@torch.no_grad()
def test_no_answer_ends_before_its_shortest_length():
    found = sample(ending_often(), varied_prompts(200), min_new_tokens=3, max_new_tokens=6)
    lengths = found.response_mask.sum(dim=1)
    assert lengths.min() == 4  # three tokens and the end
    assert lengths.max() == 6


@torch.no_grad()
def test_the_batch_is_as_wide_as_its_longest_answer():
    found = sample(ending_often(), varied_prompts(4), max_new_tokens=100)
    assert found.ended.all()
    assert found.response_ids.shape[1] == found.response_mask.sum(dim=1).max() < 100


@torch.no_grad()
def test_rows_are_the_answers_without_padding():
    found = sample(ending_often(), varied_prompts(50), max_new_tokens=6)
    lengths = found.response_mask.sum(dim=1).tolist()
    for row, ids, length in zip(found.rows(), found.response_ids, lengths, strict=True):
        assert row == ids[:length].tolist()


# --- seeds -------------------------------------------------------------------------------------


@torch.no_grad()
def test_s57_answers_depend_on_their_draws_alone():
    """Peer defect 4: sampling from the global generator."""
    lm, prompts = tiny.gpt2(), varied_prompts()
    torch.manual_seed(1)
    first = sample(lm, prompts, seed=3, max_new_tokens=6).rows()
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    assert sample(lm, prompts, seed=3, max_new_tokens=6).rows() == first
    assert torch.equal(torch.rand(1), expected)
    assert sample(lm, prompts, seed=4, max_new_tokens=6).rows() != first


# --- many prompts ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 5, 100])
@torch.no_grad()
def test_many_prompts_get_their_own_answers_in_their_order(batch_size):
    lm, prompts = longer_and_shorter(tiny.llama), varied_prompts()
    found = sample_in_batches(lm, prompts, batch_size=batch_size, **GREEDY)
    assert found == sample(lm, prompts, **GREEDY).rows()


# --- a response depends on its own prompt and the seed alone -------------------------------------


@torch.no_grad()
def test_s57_a_row_that_ends_earlier_or_later_changes_no_other_response():
    lm, prompts = ending_often(), varied_prompts()
    expected = sample(lm, prompts, max_new_tokens=8).rows()[1:]
    lengths = set()
    for first in range(2, 14):
        rows = sample(lm, [[first] * 9, *prompts[1:]], max_new_tokens=8).rows()
        lengths.add(len(rows[0]))
        assert rows[1:] == expected
    assert lengths >= {1, 2, 3}


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("build", [partial(longer_and_shorter, tiny.llama), ending_often])
@torch.no_grad()
def test_s57_neither_batch_size_nor_order_changes_a_sampled_response(build, batch_size):
    """Sums differ in the last bit between shapes of a batch; no draw here is that close."""
    lm, prompts = build(), varied_prompts(24)
    expected = sample(lm, prompts, max_new_tokens=8).rows()
    assert len({len(row) for row in expected}) > 3
    assert sample_in_batches(lm, prompts, batch_size=batch_size, max_new_tokens=8) == expected
    order = torch.randperm(24, generator=torch.Generator().manual_seed(batch_size)).tolist()
    shuffled = [prompts[row] for row in order]
    found = sample_in_batches(lm, shuffled, batch_size=batch_size, max_new_tokens=8)
    assert found == [expected[row] for row in order]


@torch.no_grad()
def test_s57_a_response_that_was_cut_is_the_start_of_the_one_with_more_room():
    lm, prompts = ending_often(), varied_prompts(24)
    short, long = (sample(lm, prompts, max_new_tokens=room).rows() for room in (3, 8))
    assert short != long
    assert short == [row[:3] for row in long]


@torch.no_grad()
def test_s57_equal_policies_give_equal_responses_and_equal_prompts_different_ones():
    first, second = (sample(tiny.gpt2(), PROMPTS * 4, max_new_tokens=8).rows() for _ in range(2))
    assert first == second
    copies = first[:: len(PROMPTS)]
    assert len(copies) == 4
    assert len({tuple(row) for row in copies}) > 1


def test_long_prompts_are_read_in_parts_of_equal_length(monkeypatch: pytest.MonkeyPatch):
    lm = tiny.llama()
    width = lm.config.intermediate_size
    assert prompt_parts(lm, 2**10, 4) == [slice(0, 4)]
    monkeypatch.setattr(generation, "MOST_READ", 3 * 10 * width)
    assert prompt_parts(lm, 3, 10) == [slice(0, 10)]
    assert prompt_parts(lm, 3, 11) == [slice(0, 5), slice(5, 11)]
    assert prompt_parts(lm, 12, 10) == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]
    assert prompt_parts(lm, 1000, 2) == [slice(0, 1), slice(1, 2)]
