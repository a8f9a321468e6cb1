"""Rewards by rule: each rule by hand, the word list's file, and the mix with a learned score."""

import re

import pytest
import torch

from rlhf.actor_critic import build_actor_critic
from rlhf.batches import Rollout
from rlhf.chat import decode_rows, encode_prompt, encode_response
from rlhf.params.ppo import PPOParams
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import train
from rlhf.ppo_update import PPOTraining
from rlhf.rollouts import PPOModels
from rlhf.rule_rewards import (
    EMBEDDED_WORDS,
    WordListError,
    build_rule_rewards,
    format_reward,
    length_reward,
    load_sentiment_words,
    relevance_reward,
    sentiment_reward,
    words_of,
)
from rlhf.seeding import Seeds
from rlhf.self_checks import check_models
from rlhf.sentiment_words import NEGATIVE, POSITIVE
from rlhf.special_ids import SpecialIds
from tests import tiny


def test_words_are_letters_and_digits_joined_by_apostrophes_and_hyphens():
    assert words_of("Can't pay: 4711 twenty-one, ÉTÉ — a_b!") == [
        "can't", "pay", "4711", "twenty-one", "été", "a", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"), [(0, 0.0), (1, 0.25), (4, 1.0), (5, 0.75), (8, 0.0), (30, 0.0)]
)
def test_the_length_rule_peaks_at_its_target_and_falls_off_on_both_sides(words, expected):
    assert length_reward("so, " * words, target=4) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("The LAMP, from Kim.", 1.0),
        ("A lamp lamp lamp.", 0.5),
        ("It is for you.", 0.0),
        ("", 0.0),
    ],
)
def test_the_relevance_rule_counts_content_words_once_and_no_stop_words(response, expected):
    assert relevance_reward("Kim: is it a lamp? A lamp for you!", response) == expected


def test_a_number_of_two_digits_is_a_content_word():
    assert relevance_reward("Where is order 12 now?", "It is number 12.") == 0.5


def test_a_prompt_without_content_words_has_no_relevance_to_give():
    assert relevance_reward("What is it for?", "What is it for?") == 0.0


@pytest.mark.parametrize(
    ("response", "finished", "passed"),
    [
        ("It left today. It comes soon!", True, 5),
        ("(“Two lamps” left today.)", True, 5),
        ("2 lamps left today.", True, 5),
        ("it left today.", True, 4),
        ("It left today", True, 4),
        ("It left today.", False, 4),
        ("It left today. it left, today.", True, 4),
        ("It left left today.", True, 4),
        ("It left  today.", True, 4),
        ("It left today .", True, 4),
        ("good good  good", False, 1),
        ("...", True, 0),
        ("", True, 0),
    ],
)
def test_the_format_rule_is_the_share_of_five_checks(response, finished, passed):
    assert format_reward(response, finished=finished) == passed / 5


def test_the_sentiment_rule_is_positive_minus_negative_words():
    words = {"good": 1.0, "bad": -1.0, "fine": 0.5}
    assert sentiment_reward("Good, GOOD and fine; goodness! Bad.", words=words) == 1.5
    assert sentiment_reward("", words=words) == 0.0


def test_no_embedded_word_is_both_positive_and_negative_or_listed_twice():
    assert len(EMBEDDED_WORDS) == len(POSITIVE.split()) + len(NEGATIVE.split())
    assert set(EMBEDDED_WORDS.values()) == {1.0, -1.0}
    assert all(words_of(word) == [word] for word in EMBEDDED_WORDS)


# --- the file of words -------------------------------------------------------------------------


def test_a_file_of_words_gives_plain_words_one_point_and_others_their_score(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("# praise\n\ngood\nSplendid\t2.5\nbad\t-1\n", encoding="utf-8")
    assert load_sentiment_words(path) == {"good": 1.0, "splendid": 2.5, "bad": -1.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nnot good\n", "line 2: expected a single word, found 'not good'"),
        (b"good\tmuch\n", "line 1: expected a score after the tab, found 'much'"),
        (b"good\tnan\n", "line 1: expected a score after the tab, found 'nan'"),
        (b"good\nGood\t2\n", "line 2: 'good' is listed a second time"),
        (b"# nothing\n", "expected one word per line, found none"),
        (b"\xff\n", "not UTF-8"),
    ],
)
def test_a_bad_file_of_words_is_refused_by_file_line_and_reason(tmp_path, content, message):
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(WordListError, match=f"{re.escape(str(path))}.*{re.escape(message)}"):
        load_sentiment_words(path)


def test_a_missing_file_of_words_is_named(tmp_path):
    with pytest.raises(WordListError, match=r"nowhere\.txt: cannot be read"):
        load_sentiment_words(tmp_path / "nowhere.txt")


# --- the mix -----------------------------------------------------------------------------------

PROMPT = "Kim: my lamp is broken"
ANSWERS = ("A good lamp, Kim.", "bad bad")


def rollout() -> Rollout:
    """Two answers as text, one finished; the learned scores are 2 and -1."""
    tokenizer = tiny.tokenizer()
    prompt = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    rows = [
        encode_response(tokenizer, answer, finished=finished)
        for answer, finished in zip(ANSWERS[:2], (True, False), strict=True)
    ]
    width = max(map(len, rows))
    ids = torch.full((2, width), tokenizer.pad_token_id)
    mask = torch.zeros(2, width, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), True
    zeros = torch.zeros(2, width)
    return Rollout(
        prompt_ids=torch.tensor([[tokenizer.pad_token_id, *prompt]] * 2),
        prompt_mask=torch.tensor([[False, *[True] * len(prompt)]] * 2),
        response_ids=ids,
        response_mask=mask,
        logprobs=zeros,
        sampler_logprobs=zeros,
        ref_logprobs=zeros,
        values=zeros,
        scores=torch.tensor([2.0, -1.0]),
        ended=torch.tensor([True, False]),
    )


def mixed(**weights):
    rules = build_rule_rewards(RewardMixParams(**weights), tiny.tokenizer())
    assert rules is not None
    return rules.mix(rollout())


@pytest.mark.parametrize(
    ("weights", "scores", "components"),
    [
        ({"sentiment": 2.0}, [4.0, -5.0], {"learned": 0.5, "sentiment": -0.5}),
        ({"learned": 0.0, "sentiment": 1.0}, [1.0, -2.0], {"sentiment": -0.5}),
        ({"learned": 0.5}, [1.0, -0.5], {"learned": 0.5}),
        # 4 of 8 words, 2 of 8 words.
        ({"length": 4.0, "length_target": 8}, [4.0, 0.0], {"learned": 0.5, "length": 0.375}),
        # Content words of the prompt: kim, lamp, broken.
        ({"relevance": 3.0}, [4.0, -1.0], {"learned": 0.5, "relevance": 1 / 3}),
        # The second answer: not cut by a capital or an end, but its spacing and sentences are fine.
        ({"format": 5.0}, [7.0, 1.0], {"learned": 0.5, "format": 0.7}),
    ],
    ids=["sentiment", "rules only", "half the learned", "length", "relevance", "format"],
)
def test_the_score_is_the_weighted_sum_and_each_component_is_reported(
    assert_close, weights, scores, components
):
    result = mixed(**weights)
    assert_close(result.rollout.scores, scores, rtol=0, atol=1e-5)
    assert list(result.components) == list(components)
    assert_close(list(result.components.values()), list(components.values()), rtol=0, atol=1e-6)


def test_a_chat_templates_own_words_are_no_part_of_the_prompt(assert_close):
    """What is asked is told by the data; the ids have the template's words, too."""
    asked = [{"role": "user", "content": "a lamp"}]
    ids, mask = rollout().prompt_ids, rollout().prompt_mask
    known = {tuple(ids[0][mask[0]].tolist()): asked}
    weights = RewardMixParams(learned=0.0, relevance=1.0)
    rules = build_rule_rewards(weights, tiny.tokenizer(), prompts=known)
    # Its one content word is in the first answer; by the ids there would be three, kim and broken.
    assert_close(rules.mix(rollout()).rollout.scores, [1.0, 0.0], rtol=0, atol=0)
    assert rules.score([asked] * 2, ANSWERS, [True, False]) == [1.0, 0.0]


def test_the_mix_changes_nothing_of_the_rollout_but_its_scores():
    before, after = rollout(), mixed(sentiment=1.0).rollout
    for name in ("prompt_ids", "response_ids", "response_mask", "logprobs", "values", "ended"):
        assert torch.equal(getattr(before, name), getattr(after, name))


def test_the_learned_reward_alone_needs_no_rules():
    assert build_rule_rewards(RewardMixParams(), tiny.tokenizer()) is None


def test_words_from_a_file_take_the_place_of_the_embedded_ones(tmp_path, assert_close):
    path = tmp_path / "words.txt"
    path.write_text("lamp\t3\n", encoding="utf-8")
    result = mixed(learned=0.0, sentiment=1.0, sentiment_words=str(path))
    assert_close(result.rollout.scores, [3.0, 0.0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rewards": RewardMixParams(learned=0.0)}, "rewards.learned"),
        ({"rewards": RewardMixParams(sentiment_words="words.txt")}, "rewards.sentiment_words"),
        (
            {"rewards": RewardMixParams(learned=0.0, length=1.0), "value_init": "reward"},
            "value_init",
        ),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(changes, key):
    params = PPOParams(**{"value_init": "zero", **changes})
    assert [found for found, _ in params.problems()] == [key]


# --- a round on rules --------------------------------------------------------------------------


def rules_only(**changes) -> PPOParams:
    return PPOParams(
        **{
            "iterations": 2,
            "rollout_size": 4,
            "sampling": SamplingParams(max_new_tokens=6),
            "value_init": "zero",
            "missing_end_penalty": 0.0,
            "rewards": RewardMixParams(learned=0.0, format=1.0, length=2.0),
            **changes,
        }
    )


def run_round(params: PPOParams, reward_model=None):
    tokenizer = tiny.tokenizer()
    size = len(tokenizer)
    actor = build_actor_critic(tiny.llama(0, size), reward_model=None, separate=True)
    training = PPOTraining(PPOModels(actor, tiny.llama(0, size), reward_model), params)
    prompts = [encode_prompt(tokenizer, "Sam: my lamp?"), encode_prompt(tokenizer, "a parcel")]
    ids = SpecialIds(tokenizer.eos_token_id, tokenizer.pad_token_id)
    rules = build_rule_rewards(params.rewards, tokenizer)
    check_models(training.models, prompts, ids, starts_at_reference=True)
    loop = train(training, prompts, params, ids, compute=tiny.COMPUTE, seeds=Seeds(0), rules=rules)
    return list(loop)


def test_a_round_runs_on_rules_alone_without_a_reward_model(assert_close):
    """Each sampled answer is scored again here, from its text."""
    tokenizer, params = tiny.tokenizer(), rules_only()
    for step in run_round(params):
        texts = decode_rows(tokenizer, step.rollout.response_ids, step.rollout.response_mask)
        expected = [
            format_reward(text, finished=end) + 2.0 * length_reward(text, target=20)
            for text, end in zip(texts, step.rollout.ended.tolist(), strict=True)
        ]
        assert_close(step.rollout.scores, expected, rtol=0, atol=1e-6)
        assert_close(step.metrics.score, sum(expected) / len(expected), rtol=0, atol=1e-6)
        assert list(step.metrics.components) == ["length", "format"]
        assert max(expected) > 0


def test_the_mix_comes_before_clipping_and_penalties(assert_close):
    """A format of up to 5 is clipped to 1.5; then a missing end costs 0.25."""
    params = rules_only(
        rewards=RewardMixParams(learned=0.0, format=5.0),
        score_clip=1.5,
        missing_end_penalty=0.25,
        kl_coef=0.0,
    )
    step = run_round(params)[0]
    scores, ended = step.rollout.scores.tolist(), step.rollout.ended.tolist()
    assert max(scores) > 1.5
    assert not all(ended)
    expected = [min(s, 1.5) - (0 if end else 0.25) for s, end in zip(scores, ended, strict=True)]
    assert_close(step.metrics.reward, sum(expected) / len(expected), rtol=0, atol=1e-6)


def test_a_learned_score_alone_has_no_components():
    params = rules_only(rewards=RewardMixParams())
    scorer = tiny.reward_model(7, len(tiny.tokenizer()))
    assert [step.metrics.components for step in run_round(params, scorer)] == [{}, {}]
