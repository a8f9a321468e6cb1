"""A repository of two rounds that only pretends to train, and workspaces of runs in it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tasks.forgetting.plan import Plan
from tests.traced_world import START, World, after

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two rounds: ann and bob judged the first, bob alone the second."""
    world = World(tmp_path / "world")
    shutil.copy(ROOT / "params.yaml", world.root)
    world.prepare(["one", "two", "three Kim", "four"], ["one", "five Kim"])
    world.start()
    world.round("r1", START, ["ann", "bob"], "first")
    world.round("r2", after("r1"), ["bob"], "second")
    world.commit()
    # MLflow sets it to the store that it was connected to last.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.chdir(world.root)
    return world


def workspace(world: World, name: str, commit: str) -> Path:
    """A workspace with the dvc.lock of a commit, as a run has it."""
    folder = world.root / ".work" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "worktree", "add", "-q", "--detach", str(folder), commit]
    subprocess.run(command, cwd=world.root, check=True)
    for file in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / file, folder)
    (folder / ".dvc").mkdir()
    cache = world.root / ".dvc/cache"
    (folder / ".dvc/config.local").write_text(f"[cache]\n    dir = {cache}\n")
    return folder


def everything(root: Path) -> dict[str, bytes]:
    """All files of a repository but git's."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def stages(world: World, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Place -> what the next run makes anew there."""
    return {one.place.relative_to(world.root).as_posix(): one.stages for one in plan.again}


AFTER_LABEL = (
    "label@r1", "validate@r1", "reward@r1", "ppo@r1",
    "sample@r2", "label@r2", "validate@r2", "reward@r2", "ppo@r2",
)  # fmt: skip
