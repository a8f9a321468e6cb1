"""Win rates of an evaluation: each is against the policy that it names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf.intervals import win_interval
from rlhf.params.rule_rewards import RewardMixParams
from tasks import evaluate
from tasks.evaluating.bench import Responses

OURS, SFT, BEFORE = [3.0, 2.0, 2.0], [1.0, 1.0, 1.0], [4.0, 3.0, 1.0]
"""Scores: against SFT all three are won, against the round before one is."""


def responses(gold: list[float] | None) -> Responses:
    return Responses(["a b"] * 3, [[5, 6]] * 3, [True, False, True], gold)


def bench(**more: Any) -> Any:
    return SimpleNamespace(too_long=4, served={}, expect=lambda: None, **more)


def test_with_gold_each_win_rate_is_against_the_policy_that_it_names():
    ours, sft, before = map(responses, (OURS, SFT, BEFORE))
    found = evaluate._metrics("r2", bench(), ours, sft, before, [0.5, 1.0, 1.5])
    assert found["win_rate_vs_sft"] == win_interval(3.0, 0.0, 3).as_dict()
    assert found["win_rate_vs_previous"] == win_interval(1.0, 0.0, 3).as_dict()
    assert (found["gold"]["mean"], found["kl"]["mean"]) == (7 / 3, 1.0)
    assert (found["length"], found["finished"], found["too_long"]) == ({"mean": 2.0}, 2 / 3, 4)


def test_without_gold_the_scores_of_the_round_before_are_asked_for():
    sft, before = responses(None), responses(None)
    asked: list[Responses] = []

    def scores(of: Responses, _: Path) -> list[float]:
        asked.append(of)
        return BEFORE

    stage: Any = SimpleNamespace(
        params=SimpleNamespace(ppo=SimpleNamespace(rewards=RewardMixParams()))
    )
    told = (stage, bench(scores=scores), Path("no reward model"), OURS, SFT, sft)
    found = evaluate._rewarded(*told, before)
    assert found["win_rate_judge"] == "rules"
    assert found["win_rate_vs_sft"] == win_interval(3.0, 0.0, 3).as_dict()
    assert found["win_rate_vs_previous"] == win_interval(1.0, 0.0, 3).as_dict()
    assert len(asked) == 1
    assert asked[0] is before
    # In the first round SFT is the round before, and is not scored a second time.
    first = evaluate._rewarded(*told, sft)
    assert first["win_rate_vs_previous"] == first["win_rate_vs_sft"] == found["win_rate_vs_sft"]
    assert len(asked) == 1
