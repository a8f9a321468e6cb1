"""Two runs without gold, each judged by the reward model that it trained itself."""

import pytest

from tasks.compare import main
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.traced_world import START, World
from tests.unit.tasks.comparing.compared import metrics, world_fixture  # noqa: F401


def test_win_rates_by_each_sides_own_reward_model_are_shown_and_not_subtracted(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fixture's last commit has trained its reward model on other labels than the first."""
    for name, judge in (("one", "bob"), ("other", "bob"), ("third", "cy")):
        if judge != "bob":
            world.round("r1", START, [judge], name)
        found = metrics({"one": 1.0, "other": 2.0, "third": 4.0}[name])
        own = f'{found[:-1]}, "win_rate_judge": "reward_model"}}'
        world.measure("r1", {"metrics.json": own})
        world.commit(name)

    def noted(*sides: str) -> str:
        assert main(list(sides)) == 0
        lines = capsys.readouterr().out.splitlines()
        return next(line for line in lines if line.startswith("  r1 win_rate_vs_sft"))

    assert noted("one", "other").endswith("  +1")
    assert noted("other", "third").endswith("  other reward models")
