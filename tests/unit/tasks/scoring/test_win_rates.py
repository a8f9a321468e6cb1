"""Win rates by a judge that did not train the policy."""

from pathlib import Path

import pytest
import torch

from feedback.annotators import LabelParams
from feedback.judges import ORDERS_DIFFER, LanguageModelParams
from feedback.judgments import Pair
from preferences.records import Judgment
from rlhf.intervals import hits_interval, win_interval
from tasks.params.loading import RunParams
from tasks.running.outcome import StageEnd
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


def test_what_a_language_model_says_counts_and_what_it_skipped_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Won, lost, tied, two bad ones, skipped, equal texts; each text goes with its own end."""
    choices = ["a", "b", "tie", "both_bad", "skip"]
    asked: list[Pair] = []

    def answer(params: object, pairs: list[Pair]) -> list[Judgment]:
        asked.extend(pairs)
        return [
            Judgment(
                judgment_id=choice, pair_id=pair.pair_id, round=pair.round, annotator_id="m",
                kind="llm", choice=choice, revision=1,
                reason=ORDERS_DIFFER if choice == "tie" else None,
            )
            for pair, choice in zip(pairs, choices, strict=True)
        ]  # fmt: skip

    monkeypatch.setattr("tasks.scoring.win_rates.ask_language_model", answer)
    model = LanguageModelParams(endpoint="http://127.0.0.1:1", model="m")
    params = LabelParams(annotators="none", language_model=model)
    ours = Answers(texts=["same", *"vwxyz"], finished=[True, True, False, True, True, False])
    sft = Answers(texts=["same", *"VWXYZ"], finished=[True, False, True, True, False, True])
    found = judged_win_rate(
        "language_model", params, RUN, prompts=[*"012345"], ours=ours, theirs=sft
    )

    assert found == {
        **win_interval(1.0, 3.0, 5).as_dict(), "skipped": 1, "orders_differ": 1
    }  # fmt: skip
    assert [(one.prompt, one.response_a, one.response_b) for one in asked] == [
        (str(number), "uvwxyz"[number], "UVWXYZ"[number]) for number in range(1, 6)
    ]
    assert [one.finished_a for one in asked] == ours.finished[1:]
    assert [one.finished_b for one in asked] == sft.finished[1:]


def test_a_judge_that_skips_everything_ends_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.scoring.win_rates.ask_reward_model", lambda *_: [])
    params = LabelParams(annotators="none", reward_model="judge")
    one, other = (Answers(texts=[text], finished=[True]) for text in "ab")
    with pytest.raises(StageEnd, match="reward_model gave no verdict on any prompt"):
        judged_win_rate("reward_model", params, RUN, prompts=["?"], ours=one, theirs=other)
