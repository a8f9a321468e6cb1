"""Which measures of two sides are subtracted."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks.comparing.differences import (
    Differing,
    UnknownError,
    code,
    data,
    paired_gold,
    params,
    policies,
    reward_models,
)
from tasks.comparing.sides import Side
from tasks.tracing.records import Ran


def side(share: float, judge: str) -> dict[str, Any]:
    interval = {"mean": share, "low": share - 0.1, "high": share + 0.1}
    policy = {"name": "r1", "win_rate_vs_sft": interval, "win_rate_judge": judge, "kl": {"mean": 2}}
    return {"policies": [policy]}


def test_win_rates_of_one_judge_are_subtracted():
    (row,) = policies(side(0.5, "gold"), side(0.75, "gold"))
    assert (row.name, row.note) == ("r1 win_rate_vs_sft", "+0.25")


def test_win_rates_of_different_judges_are_not():
    (row,) = policies(side(0.5, "gold"), side(0.75, "label.rules"))
    assert (row.first, row.second) == ("0.500 (0.400 to 0.600)", "0.750 (0.650 to 0.850)")
    assert row.note == "other judges: gold, label.rules"


def test_win_rates_of_one_judge_that_is_another_model_are_not_subtracted():
    sides = (side(0.5, "label.language_model"), side(0.75, "label.language_model"))
    (row,) = policies(*sides, others={"label.language_model"})
    assert row.note == "other models as judges"
    (row,) = policies(*sides, others={"label.reward_model"})
    assert row.note == "+0.25"


def test_what_each_sides_own_reward_model_has_scored_is_not_subtracted():
    """Which of two policies is better cannot be told by two judges, each made to be pleased."""

    def scored(share: float, judge: str) -> dict[str, Any]:
        found = side(share, judge)
        found["policies"][0]["proxy"] = {"mean": 4 * share}
        return found

    others = "other reward models"
    notes = {
        judge: [
            row.note for row in policies(scored(0.5, judge), scored(0.75, judge), {"r1": others})
        ]
        for judge in ("reward_model", "mixed_reward", "rules", "gold", "label.language_model")
    }
    assert notes == {
        "reward_model": [others, others],
        "mixed_reward": [others, others],
        "rules": [others, others],
        "gold": [others, "+0.25"],
        "label.language_model": [others, "+0.25"],
    }
    both = policies(scored(0.5, "reward_model"), scored(0.75, "reward_model"))
    assert [row.note for row in both] == ["+1", "+0.25"], "by one reward model"


def test_code_of_a_stage_that_one_side_has_not_run_yet_is_not_called_the_others_alone():
    sft = Ran("sft", {"rlhf/sft.py": "1"}, {}, {})
    ppo = Ran("ppo@r1", {"rlhf/ppo.py": "1"}, {}, {})
    whole = Side("a", "variant", "c", Path(), {}, False, (sft, ppo))
    waits = Side("b", "variant", "c", Path(), {}, False, (sft,), ("ppo@r1",))
    assert code(Path(), whole, waits) == code(Path(), waits, whole) == []
    another = Side("d", "variant", "c", Path(), {}, False, (sft,))
    assert code(Path(), whole, another) == ["rlhf/ppo.py (only A)"]


def of(kind: str, values: Mapping[str, str], *runs: Ran) -> Side:
    return Side("a", kind, "c", Path(), values, kind == "run", runs)


def test_params_are_compared_where_both_sides_state_them():
    """A run of MLflow states every default, a commit what its params.yaml has."""
    commit = of("commit", {"ppo.kl_coef": "0.1", "run.seed": "0", "own": "x"})
    run = of("run", {"ppo.kl_coef": "0.2", "run.seed": "0", "ppo.gamma": "1.0"})

    kl_coef = ("ppo.kl_coef", "0.1", "0.2")
    assert params(commit, run) == [Differing(*kl_coef)]
    assert params(run, commit) == [Differing("ppo.kl_coef", "0.2", "0.1")]
    other = of("variant", {"ppo.kl_coef": "0.2", "run.seed": "0", "ppo.gamma": "1.0"})
    assert params(commit, other) == [
        Differing(*kl_coef), Differing("own", "x", "-"), Differing("ppo.gamma", "-", "1.0")
    ]  # fmt: skip


def test_data_stand_on_their_own_side_and_what_mlflow_does_not_know_is_no_difference(
    tmp_path: Path,
):
    sample, label = (
        Ran("sample@r1", {}, {"data/a": "1" * 32, "models/m": "5" * 32}, {}),
        Ran("label@r1", {}, {"data/b": "2" * 32}, {}),
    )
    anew = Ran("sample@r1", {}, {"data/a": "3" * 32, "models/m": "6" * 32}, {})
    whole, part = of("commit", {}, sample, label), of("commit", {}, anew)
    run = of("run", {}, anew)

    here = Differing("data/a", "111111111 (not here)", "333333333 (not here)")
    there = Differing("data/a", here.second, here.first)
    assert data(whole, part) == [here, Differing("data/b", "222222222 (not here)", "-")]
    assert (data(whole, run), data(run, whole)) == ([here], [there])


def test_rows_are_counted_and_not_the_line_that_stands_where_nobody_judged(tmp_path: Path):
    """`label` with `annotators: none` writes an end of a line and nothing else."""

    def judged(text: bytes) -> Side:
        digest = hashlib.md5(text).hexdigest()
        cached = tmp_path / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
        cached.parent.mkdir(parents=True, exist_ok=True)
        cached.write_bytes(text)
        label = Ran("label@r1", {}, {"data/rounds/r1/judgments.jsonl": digest}, {})
        return Side("a", "commit", "c", tmp_path, {}, False, (label,))

    (found,) = data(judged(b'{"choice": "a"}\n'), judged(b"\n"))
    assert [words.partition(" ")[2] for words in (found.first, found.second)] == ["1 row", "0 rows"]


def test_data_are_not_called_equal_to_those_of_a_run_that_made_none():
    whole = of("commit", {}, Ran("sample@r1", {}, {"data/a": "1" * 32}, {}))
    resumed = of("run", {}, Ran("ppo@r1", {}, {"models/m": "5" * 32}, {}))
    for sides in ((whole, resumed), (resumed, whole), (resumed, resumed)):
        with pytest.raises(UnknownError, match="only what a run made itself"):
            data(*sides)


def test_each_measure_of_a_reward_model_is_subtracted_from_the_second_side():
    def rewards(pairs: int, shift: float) -> dict[str, Any]:
        shares = {
            name: {"mean": 0.5 + shift, "low": 0.4, "high": 0.6}
            for name in ("accuracy_before", "accuracy_after", "longer_wins")
        }
        return {"reward_models": [{"round": "r1", "pairs": pairs, "ece": 0.1 + shift, **shares}]}

    rows = reward_models(rewards(1500, 0.0), rewards(12000, 0.125))

    share = ("0.500 (0.400 to 0.600)", "0.625 (0.400 to 0.600)", "+0.125")
    assert rows == [
        Differing("r1 pairs", "1,500", "12,000", "+1.05e+04"),
        *(Differing(f"r1 {name}", *share)
          for name in ("accuracy_before", "accuracy_after", "longer_wins")),
        Differing("r1 ece", "0.100", "0.225", "+0.125"),
    ]  # fmt: skip


def test_gold_is_paired_over_the_prompts_that_both_have_scored(tmp_path: Path):
    def scored(name: str, golds: Mapping[str, float | None]) -> Path:
        path = tmp_path / name / "results/evaluate/r1/samples.jsonl"
        path.parent.mkdir(parents=True)
        rows = [{"prompt_id": prompt, "gold": gold} for prompt, gold in golds.items()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    ours = scored("a", {"p": 1.0, "q": 2.0, "r": None, "s": 5.0})
    theirs = scored("b", {"q": 4.0, "p": 2.0, "r": 9.0, "t": 5.0})

    # 1 and 2: mean 1.5, standard deviation 0.7071; t(1) = 12.706 over the root of 2: 6.353.
    assert paired_gold(ours, theirs, ["r1"]) == {"r1": "+1.50 (-4.85 to +7.85, 2 prompts)"}
    # One prompt alone has no interval.
    assert paired_gold(ours, scored("c", {"p": 2.0, "r": 1.0}), ["r1"]) == {}
    assert paired_gold(ours, scored("d", {"r": None}), ["r1"]) == {}
