"""Tokens are drawn from the right distribution: that of the temperature and of the filters."""

import math
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

import pytest
import torch

from rlhf.draws import draw_table
from rlhf.params.sampling import SamplingParams
from rlhf.token_draws import BLOCK, ONE, draw_by_blocks, draw_index, draw_tokens, filter_logits
from tests import tiny
from tests.sampling import ending_often, sample
from tests.tiny import PROMPTS

NO = -math.inf


def frequencies(tokens: torch.Tensor) -> torch.Tensor:
    return torch.bincount(tokens, minlength=tiny.VOCABULARY) / len(tokens)


def assert_within_three_standard_errors(tokens: torch.Tensor, expected: torch.Tensor) -> None:
    """For the tokens expected 20 times or more, where the error is close to normal."""
    assert frequencies(tokens)[expected == 0].sum() == 0
    often = expected * len(tokens) >= 20
    assert expected[often].sum() > 0.5
    errors = (expected * (1 - expected) / len(tokens)).sqrt()
    assert ((frequencies(tokens) - expected).abs() <= 3 * errors)[often].all()


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


def test_the_filters_look_at_the_probabilities_that_the_temperature_gives():
    """At 0.5 they are squared: 25, 9 and 4 of 38, and the first alone reaches 0.6 (as in vLLM)."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for temperature, last in ((1.0, 1), (0.5, 0)):
        settings = SamplingParams(temperature=temperature, top_p=0.6)
        found, _ = draw_tokens(logits, settings, banned=None, uniform=torch.tensor([0.999]))
        assert found.tolist() == [last]


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.4}])
def test_the_filters_choose_among_what_is_not_banned(filters):
    logits, banned = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([True, False, False])
    settings = SamplingParams(**filters)
    found, finite = draw_tokens(logits, settings, banned=banned, uniform=torch.tensor([0.999]))
    assert (found.tolist(), bool(finite)) == ([1], True)


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


@torch.no_grad()
def test_top_p_draws_from_the_kept_tokens_in_their_proportions():
    lm, prompt = tiny.gpt2(), [5, 6, 7]
    found = sample(lm, [prompt] * 4000, top_p=0.6, temperature=1.0, max_new_tokens=1)
    logits = filter_logits(lm(torch.tensor([prompt])).logits[:, -1], top_k=0, top_p=0.6)
    kept = int((logits > NO).sum())
    assert 1 < kept < 16
    assert_within_three_standard_errors(found.response_ids[:, 0], logits[0].softmax(0))


@pytest.mark.parametrize("vocabulary", [1, 5, BLOCK, BLOCK + 1, 5 * BLOCK - 1, 9 * BLOCK])
@pytest.mark.parametrize("most_are_zero", [False, True])
def test_sums_of_blocks_first_give_the_same_index(vocabulary: int, most_are_zero: bool) -> None:
    """By exact fractions, at both ends of every interval too, where a rounding would show."""
    generator = torch.Generator().manual_seed(vocabulary)
    weights = torch.rand(vocabulary, generator=generator)
    if most_are_zero:
        weights[torch.randperm(vocabulary, generator=generator)[vocabulary // 10 + 1 :]] = 0
    shares = (weights / weights.sum() * ONE).long()
    total = int(shares.sum())
    ends = list(accumulate(shares.tolist()))
    points = sorted({0, total - 1, *(point for end in ends for point in (end - 1, end))})
    # Of numbers of 53 bits those whose product with the total is exactly such a point, or just not.
    uniform = [point / total for point in points if 0 <= point < total]
    found = draw_by_blocks(shares.expand(len(uniform), -1), torch.tensor(uniform).double())

    expected = [
        bisect_right(ends, min(int(torch.tensor(u).double() * total), total - 1)) for u in uniform
    ]
    assert found.tolist() == expected
    assert (shares[found] > 0).all()


@pytest.mark.parametrize("vocabulary", [15, BLOCK - 1, BLOCK + 1, 2 * BLOCK - 1])
def test_broken_probabilities_ask_for_no_block_that_is_not_there(vocabulary: int) -> None:
    """NaN as a whole number is the least there is; the sampling is refused after the draw."""
    broken = torch.full((3, vocabulary), torch.iinfo(torch.int64).min)
    assert len(draw_by_blocks(broken, torch.tensor([0.0, 0.5, 1 - 2**-53]).double())) == 3
    assert draw_by_blocks(broken[:0], torch.zeros(0).double()).shape == (0,)
