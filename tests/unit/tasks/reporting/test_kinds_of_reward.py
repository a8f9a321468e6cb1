"""What the report calls the rewards of runs that are not trained on one reward model each round."""

from dataclasses import fields
from pathlib import Path

from rlhf.params.rule_rewards import RewardMixParams
from tasks.params.changed import ChangedParam
from tasks.report import build_report
from tasks.reporting.data import read_losses
from tasks.reporting.page import BESIDE
from tasks.reporting.result_table import result_table
from tests.unit.tasks.reporting.conftest import ROUNDS
from tests.unit.tasks.reporting.report_world import chained
from tests.unit.tasks.reporting.test_result_table import SUMMARY


def page(world: Path, out: Path, *changed: ChangedParam) -> str:
    build_report(world, chained(ROUNDS), "r3", out, seed=0, changed=changed)
    return (out / "index.html").read_text(encoding="utf-8")


def test_scores_by_rules_are_not_called_a_reward_models(world: Path, tmp_path: Path) -> None:
    model = ("Reward model&#39;s score", "round’s reward model, in its", "reward model chooses")
    ruled = page(world, tmp_path, ChangedParam("ppo.rewards.learned", 0.0, 1.0))
    assert not [words for words in model if words in ruled]
    assert "the score by ppo.rewards chooses one" in ruled
    assert "learning from preferences" not in ruled
    learned = page(world, tmp_path, ChangedParam("ppo.rewards.learned", 0.5, 1.0))
    assert [words for words in model if words in learned] == list(model)
    mixed = page(world, tmp_path, ChangedParam("ppo.rewards.format", 0.2, 0.0))
    assert not [words for words in model if words in mixed]
    assert "the score by ppo.rewards chooses one" in mixed
    assert "no reward model takes part" not in mixed


def test_a_round_without_a_reward_model_has_no_accuracy_in_the_table() -> None:
    none = {"round": "r1", "accuracy_before": None, "accuracy_after": None}
    rows = result_table(SUMMARY | {"reward_models": [none]}).splitlines()
    (row,) = [row for row in rows if row.startswith("r1")]
    assert row.endswith(" -")
    assert "first" not in row


def test_the_losses_of_all_members_of_an_ensemble_are_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "results/reward/r1"
    folder.mkdir(parents=True)
    rows = ["step,loss,member_2/loss", "1,0.7,", "2,0.6,", "3,,0.8", "4,,0.5"]
    (folder / "history.csv").write_text("\n".join(rows) + "\n")
    loss = read_losses(tmp_path, ["r1"])["reward"].by_metric["loss"]
    assert loss.points == ((0.0, 0.7), (1.0, 0.6), (2.0, 0.8), (3.0, 0.5))


def test_the_report_knows_every_rule_that_may_count_beside_a_reward_model() -> None:
    rules = {each.name for each in fields(RewardMixParams) if each.default == 0.0}
    assert len(rules) == 4
    assert {f"ppo.rewards.{name}" for name in {*rules, "function"}} == BESIDE
