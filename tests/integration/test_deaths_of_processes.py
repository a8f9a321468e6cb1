"""A stage of several processes where one dies, or whoever started them, and nobody trains yet."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import stage_world
from tests.several import DEADLINE_SECONDS, SFT, finish, outcome, processes_in, ranks, start

pytestmark = pytest.mark.long

DIES_WHILE_THE_OTHER_READS = """
import os, sys, time
def heard(event, found):
    if event != "open" or "models/base/" not in str(found[0]) or not os.path.exists(RUNNING):
        return
    if os.environ.get("RANK") == "0":
        open(READS, "w").close()
        time.sleep(300)
    if os.environ.get("RANK") == "1":
        while not os.path.exists(READS):
            time.sleep(0.05)
        os.kill(os.getpid(), 9)
RUNNING, READS = ".work/sft/running.json", os.environ.get("READS")
sys.addaudithook(heard)
"""

STARTS_ONCE_IT_MAY = """
import os, time
if "RANK" in os.environ:
    while not os.path.exists(os.environ["MAY"]):
        time.sleep(0.05)
"""

TWO = 2


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """The tiny world, in which SFT is two processes."""
    root = tmp_path / "world"
    stage_world.build(root)
    stage_world.forget(root, SFT)
    stage_world.set_params(root, "run", {"processes": TWO, "sharded": False})
    yield root
    assert processes_in(root) == []


def hooked(folder: Path, hook: str) -> str:
    """PYTHONPATH with which all processes run the hook first."""
    (folder / "sitecustomize.py").write_text(hook)
    return f"{folder}{os.pathsep}{stage_world.ROOT}"


def test_the_death_of_one_outside_of_training_fails_the_stage(world: Path, tmp_path: Path) -> None:
    path = hooked(tmp_path, DIES_WHILE_THE_OTHER_READS)

    code, said = finish(world, PYTHONPATH=path, READS=str(tmp_path / "reads"))

    assert code == 1, said
    assert outcome(world)["status"] == "failed"
    line = "sft: another of the stage's processes has ended; run it again to resume"
    assert said.splitlines().count(line) == 1, said


def test_the_death_of_the_stage_ends_those_that_still_start(world: Path, tmp_path: Path) -> None:
    gate = tmp_path / "may"
    process = start(world, PYTHONPATH=hooked(tmp_path, STARTS_ONCE_IT_MAY), MAY=str(gate))
    while len(started := ranks(world)) < TWO:
        assert process.poll() is None
        time.sleep(0.05)
    launcher = psutil.Process(started["0"]).parent()
    assert launcher is not None

    process.kill()
    launcher.wait(DEADLINE_SECONDS)
    gate.touch()
    _, said = process.communicate(timeout=DEADLINE_SECONDS)  # Until nobody holds its stderr.

    assert said.count("the launcher of its processes died while this stage was starting") == TWO
