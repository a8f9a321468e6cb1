"""Whole stages in a tiny world: the number of threads changes no byte of an output."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests import stage_world

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world with a wider network, since torch divides no tensor of the usual one."""
    root = tmp_path_factory.mktemp("threads") / "world"
    # 7 x 48 x 399 numbers: neither two nor four threads get whole vectors of them.
    stage_world.build(root, mlp_size=399, batch_size=7)
    return root


def digests(root: Path, threads: int) -> dict[str, str]:
    """The hash of each stage's outputs, all run again with so many threads."""
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params["run"]["threads"] = threads
    yaml.dump(params, root / "params.yaml")
    for stage in stage_world.STAGES:
        stage_world.forget(root, stage)
        assert stage_world.run(root, stage) == 0, stage
    return {stage: stage_world.digest(root, stage) for stage in stage_world.STAGES}


def test_one_two_three_and_four_threads_write_the_same_bytes(world: Path) -> None:
    expected = digests(world, 1)

    found = {threads: digests(world, threads) for threads in (2, 3, 4)}

    assert "" not in expected.values()
    assert found == dict.fromkeys((2, 3, 4), expected)
