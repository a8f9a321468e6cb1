"""Generation: greedy answers, the right stop, and batches that hold what they say."""

import math

import pytest
import torch
from transformers import DynamicCache

from rlhf import pass_sizes
from rlhf.generation import prompt_parts
from rlhf.masked import EmptyMaskError
from rlhf.padding import pad_left
from rlhf.stopping import NonFiniteError
from tests import tiny
from tests.families import model_of
from tests.sampling import (
    GREEDY,
    ending_often,
    longer_and_shorter,
    sample,
    sample_in_batches,
    varied_prompts,
)
from tests.tiny import EOS, PAD, PROMPTS

BOTH = pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])


def test_s39_a_prompt_without_a_token_is_refused():
    with pytest.raises(EmptyMaskError, match=r"none in rows \[1\]"):
        sample(tiny.llama(), [[5, 6], []], max_new_tokens=2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_policy_with_a_broken_weight_samples_nothing(bad):
    lm = tiny.llama()
    lm.model.norm.weight.data[0] = bad
    with pytest.raises(NonFiniteError, match="logits are not finite"):
        sample(lm, PROMPTS, max_new_tokens=2)


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


def test_rows_fill_the_gaps_before_them_when_an_eighth_has_ended(monkeypatch):
    kept = []
    plain = DynamicCache.batch_select_indices
    monkeypatch.setattr(
        DynamicCache,
        "batch_select_indices",
        lambda cache, rows: (kept.append(rows.tolist()), plain(cache, rows))[1],
    )
    found = sample(tiny.llama(), varied_prompts(50), max_new_tokens=24)
    lengths = found.response_mask.sum(dim=1).tolist()
    expected, held = [], list(range(50))
    for step in range(1, max(lengths)):
        alive = [place for place, row in enumerate(held) if lengths[row] > step]
        if 8 * len(alive) <= 7 * len(held):
            stay = [place for place in alive if place < len(alive)]
            behind = iter(alive[len(stay) :])
            expected.append(
                [place if place in stay else next(behind) for place in range(len(alive))]
            )
            held = [held[place] for place in expected[-1]]
    assert kept == expected
    assert len(expected) > 4
    ends = len(set(lengths)) - 1
    assert len(expected) < ends, "else every end would do"
    assert any(rows != sorted(rows) for rows in expected), "else no gap was filled"


# --- long prompts ------------------------------------------------------------------------------


def test_long_prompts_are_read_in_parts_of_equal_length(monkeypatch: pytest.MonkeyPatch):
    lm = tiny.llama()
    width = lm.config.intermediate_size
    assert prompt_parts(lm, 2**10, 4) == [slice(0, 4)]
    monkeypatch.setattr(pass_sizes, "MOST_READ", 3 * 10 * width)
    assert prompt_parts(lm, 3, 10) == [slice(0, 10)]
    assert prompt_parts(lm, 3, 11) == [slice(0, 5), slice(5, 11)]
    assert prompt_parts(lm, 12, 10) == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]
    assert prompt_parts(lm, 1000, 2) == [slice(0, 1), slice(1, 2)]


def test_of_layers_with_mlps_of_several_widths_the_widest_counts(monkeypatch: pytest.MonkeyPatch):
    """Gemma 3n names the width of each layer."""
    lm = model_of(
        "gemma3n_text",
        intermediate_size=[48, 96],
        head_dim=8,
        layer_types=["sliding_attention", "full_attention"],
        activation_sparsity_pattern=[0.0, 0.0],
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=tiny.VOCABULARY,
        num_kv_shared_layers=0,
    )
    monkeypatch.setattr(pass_sizes, "MOST_READ", 3 * 10 * 96)
    assert prompt_parts(lm, 3, 10) == [slice(0, 10)]
    assert prompt_parts(lm, 3, 11) == [slice(0, 5), slice(5, 11)]
