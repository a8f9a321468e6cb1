"""The sentiment experiment: its grammar, and that it runs with a GPT-2 in Hugging Face format."""

import re
from pathlib import Path

import pytest

from benchmarks import sentiment
from benchmarks.sentiment_reviews import BAD, FILMS, GOOD, HELD_OUT_FILMS, write_reviews
from rlhf.rule_rewards import EMBEDDED_WORDS
from tests import tiny


def test_the_same_seed_writes_the_same_reviews():
    assert write_reviews(5, 1, held_out=False) == write_reviews(5, 1, held_out=False)
    assert write_reviews(5, 1, held_out=False) != write_reviews(5, 2, held_out=False)


def test_held_out_prompts_name_films_that_no_training_prompt_names():
    films = FILMS[-HELD_OUT_FILMS:]
    for held_out in (False, True):
        prompts = [review.prompt for review in write_reviews(200, 3, held_out=held_out)]
        assert {any(film in prompt for film in films) for prompt in prompts} == {held_out}


def test_prompts_judge_nothing_and_all_judgements_are_words_of_the_embedded_list():
    assert {EMBEDDED_WORDS[word] for word in GOOD} == {1.0}
    assert {EMBEDDED_WORDS[word] for word in BAD} == {-1.0}
    for review in write_reviews(200, 4, held_out=False):
        assert not set(re.findall(r"\w+", review.prompt)) & {*GOOD, *BAD}
        assert review.prompt[0].isupper()


def write_gpt2(folder: Path) -> None:
    """As the hub's own: an end token, and no token to pad with."""
    text = tiny.train_tokenizer(
        [review.text for review in write_reviews(200, 0, held_out=False)], 900
    )
    text.pad_token, text.chat_template = None, None
    text.save_pretrained(folder)
    tiny.gpt2(0, len(text)).save_pretrained(folder)


SMALL = {
    "ppo": {"iterations": 1, "rollout_size": 32, "sampling": {"max_new_tokens": 16}},
    "evaluate": {"prompts": 4, "sampling": {"max_new_tokens": 8}},
}


@pytest.fixture
def world(tmp_path: Path) -> sentiment.World:
    write_gpt2(tmp_path / "gpt2")
    params = sentiment.read_params(tmp_path / "gpt2", SMALL, tmp_path / "work")
    assert params.ppo.kl_coef > 0
    assert params.ppo.rewards.learned == 0
    return sentiment.start(params)


def test_a_local_gpt2_takes_the_same_params_file_and_is_measured_before_and_after(
    world: sentiment.World,
):
    assert world.tokens().pad != world.tokens().eos
    assert type(world.model).__name__ == "GPT2LMHeadModel"
    start = {name: value.clone() for name, value in world.model.state_dict().items()}
    found = sentiment.run(world)
    assert [row.name for row in found] == [
        "before",
        f"after PPO, kl_coef {world.params.ppo.kl_coef:g}",
        "control: after PPO, kl_coef 0",
    ]
    assert all((value == start[name]).all() for name, value in world.model.state_dict().items())
    assert found[0].kl.mean == 0
    assert found[1].kl.mean > 0
    assert all(row.sentiment.n == 4 for row in found)
    page = sentiment.page(found)
    assert page.count("\n| ") == 4
    assert page.count("\n- ") == 12
