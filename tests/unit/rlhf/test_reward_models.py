"""The reward model: where the score is read, its normaliser, its head, and the way to disk."""

import pytest
import torch

from rlhf.logits import sequence_hidden
from rlhf.model_folders import is_reward_model
from rlhf.padding import pad_left, pad_right
from rlhf.reward_models import RewardModel, load_reward_model
from tests import tiny
from tests.tiny import EOS, PAD, PROMPTS
from tests.unit.rlhf.model_world import BOTH, CPU, saved, widened

BOTH_REWARDS = pytest.mark.parametrize("build", [tiny.reward_model, tiny.gpt2_reward_model])


@BOTH_REWARDS
@torch.no_grad()
def test_s41_padding_and_the_order_of_rows_change_no_score(assert_close, build):
    scorer = build()
    rows = [[*prompt, EOS] for prompt in PROMPTS]
    alone = [scorer(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool)) for row in rows]
    expected = torch.cat(alone)
    assert expected.std() > 0.05
    assert_close(scorer(*pad_right(rows, PAD)), expected, rtol=0, atol=1e-5)
    assert_close(scorer(*pad_left(rows, PAD)), expected, rtol=0, atol=1e-5)
    both = widened(*pad_left(rows, PAD), left=2, right=6, junk=EOS)
    assert_close(scorer(*both), expected, rtol=0, atol=1e-5)
    assert_close(scorer(*pad_right(rows[::-1], PAD)).flip(0), expected, rtol=0, atol=1e-5)


@BOTH_REWARDS
@torch.no_grad()
def test_s41_the_score_is_read_at_the_end_token(assert_close, build):
    """Peer defect 1: reading one token before the end, or one behind it."""
    scorer = build()
    ids, mask = pad_right([[5, 6, EOS], [5, 6, 7, 8, EOS]], PAD)
    hidden = sequence_hidden(scorer.classifier.base_model, ids, mask)
    expected = torch.stack([scorer.head(hidden[0, 2]), scorer.head(hidden[1, 4])]).squeeze(1)
    assert_close(scorer(ids, mask), expected, rtol=0, atol=1e-6)
    one_early = scorer(ids[:1, :2], mask[:1, :2])
    assert (one_early - expected[:1]).abs() > 1e-3


@BOTH_REWARDS
@torch.no_grad()
def test_s41_it_scores_as_the_library_that_wrote_the_format(assert_close, build):
    """transformers' own classifier, one sequence at a time."""
    scorer = build()
    for row in PROMPTS:
        ids = torch.tensor([row])
        expected = scorer.classifier(ids).logits[0]
        assert_close(scorer(ids, torch.ones_like(ids).bool()), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s39_a_row_without_a_real_token_is_refused():
    with pytest.raises(ValueError, match="row"):
        tiny.reward_model()(*pad_right([[5, 6], []], PAD))


@torch.no_grad()
def test_s15_the_normaliser_is_applied_once(assert_close):
    scorer, rows = tiny.reward_model(), pad_right(PROMPTS, PAD)
    raw = scorer.raw_scores(*rows)
    assert_close(scorer(*rows), raw, rtol=0, atol=0)
    scorer.set_normaliser(2.0, 0.5)
    assert_close(scorer(*rows), raw * 2 - 4, rtol=0, atol=1e-5)
    assert_close(scorer.raw_scores(*rows), raw, rtol=0, atol=0)


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan")])
def test_s15_a_spread_that_is_not_positive_is_refused(std):
    with pytest.raises(ValueError, match="gives every reference response one score"):
        tiny.reward_model().set_normaliser(0.0, std)


@BOTH_REWARDS
@torch.no_grad()
def test_s49_a_saved_reward_model_gives_the_same_scores(tmp_path, build):
    scorer, rows = build(), pad_right(PROMPTS, PAD)
    scorer.set_normaliser(-0.3, 1.7)
    scorer.classifier.save_pretrained(tmp_path)
    loaded = load_reward_model(tmp_path, CPU, torch.Generator().manual_seed(99))
    assert (loaded.mean, loaded.std) == (-0.3, 1.7)
    assert torch.equal(loaded(*rows), scorer(*rows))


@torch.no_grad()
def test_s49_a_reward_model_that_was_never_normalised_keeps_its_head(tmp_path):
    scorer, rows = tiny.reward_model(), pad_right(PROMPTS, PAD)
    scorer.classifier.save_pretrained(tmp_path)
    loaded = load_reward_model(tmp_path, CPU, torch.Generator().manual_seed(99))
    assert torch.equal(loaded(*rows), scorer(*rows))


@torch.no_grad()
def test_s49_a_reward_model_from_elsewhere_keeps_its_head(tmp_path):
    classifier = tiny.gpt2_reward_model().classifier
    folder = saved(classifier, tmp_path)
    loaded = load_reward_model(folder, CPU, torch.Generator().manual_seed(99))
    ids = torch.tensor([PROMPTS[0]])
    assert torch.equal(loaded(ids, torch.ones_like(ids).bool()), classifier(ids).logits[0])


@BOTH
def test_s42_a_fresh_head_is_drawn_from_the_seed_with_deviation_1_over_root_d_plus_1(
    assert_close, tmp_path, build
):
    folder = saved(build(), tmp_path)
    heads = [
        load_reward_model(folder, CPU, torch.Generator().manual_seed(seed)).head
        for seed in (4, 4, 5)
    ]
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    assert heads[0].bias is None
    expected = torch.randn(1, 32, generator=torch.Generator().manual_seed(4)) / 33**0.5
    assert_close(heads[0].weight, expected, rtol=0, atol=1e-7)


@torch.no_grad()
def test_s42_a_fresh_reward_model_has_the_policys_trunk_and_no_normaliser(tmp_path):
    lm = tiny.llama()
    scorer = load_reward_model(saved(lm, tmp_path), CPU, torch.Generator())
    for name, weight in lm.base_model.state_dict().items():
        assert torch.equal(scorer.classifier.base_model.state_dict()[name], weight)
    assert (scorer.mean, scorer.std) == (0.0, 1.0)
    assert not is_reward_model(tmp_path)
    assert isinstance(scorer, RewardModel)


@torch.no_grad()
@pytest.mark.parametrize("token", [5, 9])
def test_the_reward_model_made_by_hand_scores_the_share_of_its_token(assert_close, token):
    """The tests of learning rely on it."""
    scorer = tiny.share_of_token_reward_model(token, gain=0.1)
    rows = [[token, 2, 3, 4], [token, token, 3, EOS], [2, 3, 4], [token] * 5]
    assert_close(scorer(*pad_right(rows, PAD)), [0.025, 0.05, 0.0, 0.1], rtol=0, atol=2e-4)
