"""docs/measures.md says of each measure that a run writes what it is."""

import dataclasses
import re
from pathlib import Path

import pytest

from rlhf.ppo_metrics import COMPONENTS, PPOMetrics
from rlhf.pretrain import PretrainMetrics
from rlhf.reward import RewardMetrics
from rlhf.sft import SFTMetrics
from tasks.ppo import GOLD
from tasks.reporting.summary import POLICY_FIELDS, REWARD_FIELDS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "measures.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE))


def described(section: str) -> set[str]:
    """What the first cells of a section's table name."""
    cells = re.findall(r"^\| (.*?) \|", SECTIONS[section], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_each_curve_of_ppo_is_described_and_no_other() -> None:
    curves = {
        field.metadata["curve"]
        for field in dataclasses.fields(PPOMetrics)
        if "curve" in field.metadata
    }
    assert described("PPO, step by step") == curves | set(COMPONENTS.values()) | {GOLD}


def test_each_curve_of_the_other_trainings_is_described_and_no_other() -> None:
    # Tokens are for the speed alone: no file has them.
    trained = fields(SFTMetrics) | fields(RewardMetrics) | fields(PretrainMetrics)
    assert described("SFT, pre-training and reward model, step by step") == trained - {"tokens"}


@pytest.mark.parametrize(
    ("section", "names"), [("Policies", POLICY_FIELDS), ("Reward models", REWARD_FIELDS)]
)
def test_each_measure_of_the_summary_is_described(section: str, names: tuple[str, ...]) -> None:
    assert set(names) - described(section) == set()
