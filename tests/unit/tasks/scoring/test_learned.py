"""Scores of responses by what rewards a round."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf.model_folders import save_model
from rlhf.params.rule_rewards import RewardMixParams
from tasks.scoring.learned import Texts, rewarded_by, score_responses
from tests import tiny

ROW = tiny.tokenizer()("Sam: where is my parcel? It left on Monday.")["input_ids"]
TEXTS = Texts(
    prompts=["Sam: where is my parcel?"] * 2,
    responses=["It left", "It left on Monday and comes"],
    finished=[True, False],
    rows=[ROW, ROW[:-1]],
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


def test_a_reward_model_that_counts_gives_the_scores(judge: Path):
    model = tiny.classifier()
    with torch.no_grad():
        expected = [float(model(torch.tensor([row])).logits[0, 0]) for row in TEXTS.rows]
    assert rewarded_by(judge, TWO_WORDS) == "reward_model"
    found = score_responses(judge, TEXTS, TWO_WORDS, tiny.COMPUTE)
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_reward_model_without_weight_is_not_asked(judge: Path):
    """Two words are the target: 1; six are beyond twice as many: 0."""
    alone = replace(TWO_WORDS, learned=0.0)
    assert rewarded_by(judge, alone) == "rules"
    assert score_responses(judge, TEXTS, alone, tiny.COMPUTE) == [3.0, 0.0]
