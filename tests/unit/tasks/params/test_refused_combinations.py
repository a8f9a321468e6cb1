"""Combinations and values that params.yaml may not have, of parts that the shipped one lacks."""

import pytest
from ruamel.yaml import YAML

from tasks.params.loading import load_params
from tests.unit.tasks.params.conftest import ParamsFile

MACHINE = {"endpoint": "http://127.0.0.1:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"base.chat_template_args": {"thinking": False}}, "base.chat_template_args: the embedded"),
        (
            {"run.sharded": True, "run.processes": 2, "sft.lora": {"rank": 4}},
            "run.sharded: true, but sft.lora is set",
        ),
        (
            {"run.sharded": True, "run.processes": 2, "ppo.lora": {"rank": 4}},
            "run.sharded: true, but ppo.lora is set",
        ),
        ({"base.model": "/nowhere", "base.revision": "0" * 40}, "base.model: /nowhere: no such"),
        (
            {"prepare.files": {"prompts": "p.jsonl", "corpus": "c.jsonl"}},
            "prepare.files.demonstrations: required by the embedded model",
        ),
        # Who judges, and what is rewarded.
        (
            {"evaluate.judge": "language_model"},
            "evaluate.judge: language_model, but label.language_model is missing",
        ),
        (
            {"evaluate.judge": "reward_model"},
            "evaluate.judge: reward_model, but label.reward_model is missing",
        ),
        ({"reward.model": "none"}, "reward.model: none, but ppo.rewards.learned is above 0"),
        ({"ppo.rewards.sentiment_words": "w.txt"}, "ppo.rewards.sentiment_words: has no effect"),
        ({"ppo.rewards.function": "mine/check.py"}, "ppo.rewards.function: expected FILE:FUNCTION"),
        ({"ppo.rewards.function": ":score"}, "ppo.rewards.function: expected FILE:FUNCTION"),
        (
            {
                "ppo.rewards": {"learned": 0.0, "length": 1.0},
                "ppo.value_model": "separate", "ppo.value_init": "reward",
            },
            "ppo.value_init: reward needs a reward model, and rewards.learned is 0",
        ),
        ({"label.overlap": 2, "label.annotators": "language_model",
          "label.language_model": MACHINE}, "label.overlap is 2, expected 1: the language_model"),
        ({"label.language_model": MACHINE | {"timeout_s": 0.0}},
         "label.language_model.timeout_s is 0.0, expected 0.1 or more"),
        # The data that are brought along.
        ({"prepare.sources": [{"path": "p", "revision": "0" * 6}]},
         "prepare.sources.0: prepare.sources: revision is '000000', expected 7 or more digits"),
        ({"prepare.sources": [{"path": "p", "skip_malformed": -1}]},
         "prepare.sources.0: prepare.sources: skip_malformed is -1, expected 0 or more"),
        ({"prepare.sources": [{"path": "p", "map": "alpaca_eval", "format": "trl"}]},
         "prepare.sources.0: prepare.sources: map and format exclude each other"),
        ({"prepare.sources": [{"path": "p", "map": "nobody"}]},
         "prepare.sources.0: prepare.sources: "),
        # The gate.
        ({"validate.human_labels": {"r4": 50}},
         "validate.human_labels.r4: not one of the rounds: r1, r2, r3"),
        ({"validate.human_labels": {"r1": -1}}, "validate.human_labels.r1 is -1, expected 0 or"),
        ({"validate.min_rows": 0}, "validate.min_rows is 0, expected at least 1"),
        ({"validate.max_quarantined_fraction": 20.0},
         "validate.max_quarantined_fraction is 20.0, expected 0 to 1"),
        ({"validate.alike": 0.0}, "validate.alike is 0.0, expected above 0 to 1"),
        ({"validate.limits": {"longer_wins": 0.7}},
         "validate.limits.longer_wins is for no rule, expected one of blank"),
    ],
)  # fmt: skip
def test_an_impossible_combination_is_refused(
    params: ParamsFile, changes: dict[str, object], problem: str
) -> None:
    for key, value in changes.items():
        params.set(key, value)
    found = params.problems()
    assert [text.startswith(problem) for text in found] == [True], found


def test_rules_alone_need_no_scale_of_the_responses_of_sft(params: ParamsFile) -> None:
    params.set("reward.model", "none").set("sample.against_sft", 0.0)
    params.set("ppo.rewards", {"learned": 0.0, "length": 1.0}).set("ppo.value_init", "zero")
    YAML().dump(params.values, params.path)
    assert load_params(params.path).reward.model == "none"
