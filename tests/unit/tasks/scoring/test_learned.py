"""Scores of responses by what rewards a round."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf.model_folders import save_model
from rlhf.params.rule_rewards import RewardMixParams
from tasks.scoring.learned import Texts, rewarded_by, score_responses
from tests import tiny

SAID = tiny.tokenizer()("Sam: where is my parcel? It left on Monday.")["input_ids"]
ROW = [*SAID, tiny.tokenizer().eos_token_id]
TEXTS = Texts(
    prompts=["Sam: where is my parcel?"] * 2,
    responses=["It left", "It left on Monday and comes"],
    finished=[True, False],
    rows=[ROW, SAID[:-1]],
)
TWO_WORDS = RewardMixParams(length=3.0, length_target=2)


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a round's reward model, beside SFT's."""
    monkeypatch.chdir(tmp_path)
    for folder, model in (
        ("models/sft", tiny.llama(vocabulary=len(tiny.tokenizer()))),
        ("reward", tiny.classifier()),
    ):
        save_model(model, tmp_path / folder)
        tiny.tokenizer().save_pretrained(tmp_path / folder)
    return tmp_path / "reward"


def learned_scores() -> list[float]:
    model = tiny.classifier()
    with torch.no_grad():
        return [float(model(torch.tensor([row])).logits[0, 0]) for row in TEXTS.rows]


def test_a_reward_model_that_counts_alone_gives_the_scores(judge: Path):
    alone = RewardMixParams()
    assert rewarded_by(judge, alone) == "reward_model"
    found = score_responses(judge, TEXTS, alone, tiny.COMPUTE)
    assert found == pytest.approx(learned_scores(), abs=1e-5)


def test_a_response_that_ended_by_another_stop_id_is_scored_at_the_end_that_training_had(
    judge: Path,
):
    other = replace(TEXTS, rows=[[*SAID, SAID[0]], SAID[:-1]])
    found = score_responses(judge, other, RewardMixParams(), tiny.COMPUTE)
    assert found == pytest.approx(learned_scores(), abs=1e-5)


def test_rules_beside_a_reward_model_count_as_they_do_in_ppo(judge: Path):
    """Two words are the target: 3 times 1; six are beyond twice as many: 0."""
    mixed = replace(TWO_WORDS, learned=0.5)
    assert rewarded_by(judge, mixed) == "mixed_reward"
    one, other = learned_scores()
    found = score_responses(judge, TEXTS, mixed, tiny.COMPUTE)
    assert found == pytest.approx([0.5 * one + 3.0, 0.5 * other], abs=1e-5)


def test_a_reward_model_without_weight_is_not_asked(judge: Path):
    """Two words are the target: 1; six are beyond twice as many: 0."""
    alone = replace(TWO_WORDS, learned=0.0)
    assert rewarded_by(judge, alone) == "rules"
    assert score_responses(judge, TEXTS, alone, tiny.COMPUTE) == [3.0, 0.0]
