"""The same GPU and driver: the same bytes again, also when a stage is interrupted and resumed."""

import shutil
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from tests import stage_world
from tests.stage_world import STAGES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world, made on the CPU; what runs in it from now on computes on the GPU."""
    root = tmp_path_factory.mktemp("gpu") / "world"
    stage_world.build(root)
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params["run"]["device"] = "cuda"
    yaml.dump(params, root / "params.yaml")
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


def run_afresh(root: Path, stage: str) -> str:
    stage_world.forget(root, stage)
    assert stage_world.run(root, stage) == 0, stage
    return stage_world.digest(root, stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_writes_the_same_bytes_twice(world: Path, stage: str) -> None:
    on_cpu = stage_world.digest(world, stage)

    first, second = run_afresh(world, stage), run_afresh(world, stage)

    assert first == second
    assert first != on_cpu  # It really computed somewhere else.


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_stage_ends_with_the_same_bytes(
    world: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_afresh(world, stage)
    stage_world.forget(world, stage)
    stage_world.interrupt_at(monkeypatch, 2)
    assert stage_world.run(world, stage) == 143
    monkeypatch.undo()

    assert stage_world.run(world, stage) == 0

    assert stage_world.digest(world, stage) == whole
