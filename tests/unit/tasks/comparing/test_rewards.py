"""Which rounds two sides score by measures of their own."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tasks.comparing.rewards import other_judges, other_rewards
from tasks.comparing.sides import Side
from tasks.tracing.records import Ran

MODELS, MIX = "other reward models", "other ppo.rewards"


class World:
    """Rounds whose reward models DVC's cache lists."""

    def __init__(self, root: Path):
        self.root = root

    def made(self, number: str, key: str, weights: str) -> Ran:
        digest = f"{number}{key}".ljust(32, "0") + ".dir"
        files = {"model.safetensors": weights, "manifest.json": number}
        listed = self.root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
        listed.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"relpath": name, "md5": md5} for name, md5 in files.items()]
        listed.write_text(json.dumps(rows))
        return Ran(f"reward@{key}", {}, {f"models/rounds/{key}/reward": digest}, {})

    def side(self, values: Mapping[str, str], *runs: Ran) -> Side:
        return Side("a", "commit", "c", self.root, values, False, runs)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_reward_models_are_told_apart_by_their_files_but_for_the_manifest(world: World) -> None:
    rounds = [world.made(f"a{n}", f"r{n}", "x") for n in (1, 2, 3)]
    runs = (world.made("b1", "r1", "x"), world.made("b2", "r2", "y"))
    ours = world.side({}, *rounds)
    assert other_rewards(ours, world.side({}, *runs)) == {"r2": MODELS}
    gone = Ran("reward@r1", {}, {"models/rounds/r1/reward": "e" * 32 + ".dir"}, {})
    assert other_rewards(ours, world.side({}, gone)) == {"r1": MODELS}, "not on this machine"


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        # The model of others is one judge, whatever scale its rounds have.
        ({"reward.model": "judges/one"}, {"reward.model": "judges/one"}, None),
        ({"reward.model": "judges/one"}, {"reward.model": "judges/two"}, MODELS),
        ({"reward.model": "judges/one"}, {"reward.model": "None"}, MODELS),
        ({}, {"reward.model": "judges/one"}, MODELS),
        # What MLflow states of defaults is no other value.
        ({}, {"ppo.rewards.learned": "1.0", "ppo.rewards.function_seconds": "5"}, MODELS),
        # Rules alone are the same everywhere.
        (
            {"ppo.rewards.learned": "0", "ppo.rewards.length": "1"},
            {"ppo.rewards.learned": "0.0", "ppo.rewards.length": "1.0", "reward.model": "none"},
            None,
        ),
        ({"ppo.rewards.length": "1"}, {}, MIX),
        (
            {"ppo.rewards.learned": "0", "ppo.rewards.function": "mine/a.py:score"},
            {"ppo.rewards.learned": "0", "ppo.rewards.function": "mine/b.py:score"},
            MIX,
        ),
    ],
)
def test_scores_of_one_judge_are_comparable_and_others_are_not(
    world: World, ours: dict[str, str], theirs: dict[str, str], why: str | None
) -> None:
    one = world.side(ours, world.made("a1", "r1", "x"))
    other = world.side(theirs, world.made("b1", "r1", "y"), world.made("b2", "r2", "y"))

    expected = {} if why is None else {"r1": why}
    assert other_rewards(one, other) == other_rewards(other, one) == expected


def test_a_judge_of_one_name_is_another_where_its_model_is(world: World) -> None:
    asked = {"label.language_model.model": "big-8b", "label.language_model.endpoint": "http://a/v1"}
    moved = {**asked, "label.language_model.endpoint": "http://b/v1"}
    assert not other_judges(world.side(asked), world.side(moved))

    changed = {**asked, "label.language_model.model": "small-1b", "label.reward_model": "judges/a"}
    found = other_judges(world.side(asked), world.side(changed))
    assert found == {"label.language_model", "label.reward_model"}
