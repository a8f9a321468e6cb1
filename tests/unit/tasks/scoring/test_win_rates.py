"""Win rates by a judge that did not train the policy."""

from pathlib import Path

import pytest
import torch

from feedback.annotators import LabelParams
from rlhf.intervals import hits_interval
from tasks.params.loading import RunParams
from tasks.scoring.win_rates import Answers, judged_win_rate
from tests import tiny

RUN = RunParams(threads=1, device="cpu")


def test_a_classifier_judges_each_prompt_once_and_equal_texts_are_ties(tmp_path: Path) -> None:
    model = tiny.classifier()
    model.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    prompts = list(tiny.LINES)
    ours = Answers(texts=["It left.", "Kim?", "A new lamp.", "same"], finished=[True] * 4)
    sft = Answers(texts=["lamp lamp", "I am sorry.", "Sam: Kim: on", "same"], finished=[True] * 4)

    def score(prompt: str, response: str) -> float:
        text = f"<|user|>{prompt}<|end|><|assistant|>{response}<|end|>"
        ids = torch.tensor([tiny.tokenizer()(text)["input_ids"]])
        with torch.no_grad():
            return float(model.score(model.model(ids).last_hidden_state[0, -1]))

    wins = [
        score(prompt, one) > score(prompt, other)
        for prompt, one, other in zip(prompts, ours.texts, sft.texts, strict=True)
    ][:3]
    params = LabelParams(annotators="none", reward_model=str(tmp_path))
    found = judged_win_rate("reward_model", params, RUN, prompts=prompts, ours=ours, theirs=sft)
    assert found == {**hits_interval([*map(float, wins), 0.5]).as_dict(), "skipped": 0}
    turned = judged_win_rate("reward_model", params, RUN, prompts=prompts, ours=sft, theirs=ours)
    assert turned["mean"] == pytest.approx(1 - found["mean"])
