"""The whole tiny pipeline by two processes: within rounding of one, and the same bytes again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import stage_world
from tests.several import curves, outcome, processes_in

pytestmark = pytest.mark.slow

SEVERAL = ("sft", "sample@r1", "reward@r1", "ppo@r1", "evaluate@r1", "test", "best_of_n")


def dvc(root: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root,
        env=stage_world.environment(root.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pipeline as a repository, run by one process."""
    root = tmp_path_factory.mktemp("pipeline") / "main"
    stage_world.copy_tiny_repository(root, rounds=1)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "--all"], ["commit", "-qm", "tiny"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    dvc(root, "repro")
    return root


@pytest.fixture(scope="module")
def curves_of_one(by_one: Path) -> dict[str, list[list[float]]]:
    found = curves(by_one)
    assert {"results/sft/history.csv", "results/ppo/r1/history.csv"} <= found.keys()
    return found


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "divided"])
def test_two_processes_come_near_one_and_repeat_their_bytes(
    by_one: Path, curves_of_one: dict[str, list[list[float]]], assert_close, sharded: bool
) -> None:
    stage_world.set_params(by_one, "run", {"processes": 2, "sharded": sharded})

    dvc(by_one, "repro")
    first, found = (by_one / "dvc.lock").read_text(), curves(by_one)

    assert found.keys() == curves_of_one.keys()
    assert found != curves_of_one
    for name, rows in found.items():
        assert_close(rows, curves_of_one[name], rtol=1e-3, atol=1e-3)
    for stage in SEVERAL:
        environment = outcome(by_one, stage)["environment"]
        assert environment["processes"] == 2
        assert environment.get("sharded", False) == sharded
    dvc(by_one, "repro", "--force", "--no-run-cache")
    assert (by_one / "dvc.lock").read_text() == first
    assert processes_in(by_one) == []
