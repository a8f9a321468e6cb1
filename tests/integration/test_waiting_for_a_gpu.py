"""Real stages of several checkouts on one machine, which share its GPUs.

The GPUs are pretended: CUDA's variable names them, torch sees none, and the stages compute on the
CPU. Who may have which is decided before torch is asked.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import stage_world

pytestmark = pytest.mark.long

STAGE = "sft"


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three folders with the same inputs, in which the stage has not run yet."""
    folder = tmp_path_factory.mktemp("gpus")
    first = folder / "holds"
    stage_world.build(first)
    stage_world.set_params(first, "run", {"device": "auto"})
    stage_world.forget(first, STAGE)
    for name in ("waits", "has_another"):
        shutil.copytree(first, folder / name, symlinks=True)
    return {path.name: path for path in folder.iterdir()}


@contextmanager
def stage(root: Path, gpus: str) -> Iterator["subprocess.Popen[str]"]:
    environment = stage_world.environment(
        root,
        PYTHONPATH=str(stage_world.ROOT),
        TMPDIR=str(root.parent),
        CUDA_VISIBLE_DEVICES=gpus,
        RLHF_EXECUTION="tiny",
    )
    command = [sys.executable, "-m", f"tasks.{STAGE}"]
    process = subprocess.Popen(
        command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_stage_waits_for_its_gpu_and_another_one_beside_it_runs(worlds: dict[str, Path]):
    begun = {name: root / ".work" / STAGE for name, root in worlds.items()}
    with (
        stage(worlds["holds"], "0") as holds,
        stopped(holds, once=begun["holds"].is_dir),
        stage(worlds["waits"], "0") as waits,
        stage(worlds["has_another"], "0,1") as has_another,
    ):
        _, said = has_another.communicate(timeout=120)
        assert (has_another.returncode, "for GPU" in said) == (0, False)
        # It began before that one, and has computed nothing.
        time.sleep(2)
        assert waits.poll() is None
        assert not begun["waits"].exists()

        holds.send_signal(signal.SIGCONT)
        _, said = waits.communicate(timeout=120)
        assert waits.returncode == 0
        assert re.search(r"^waited \d+ s for GPU 0$", said, re.MULTILINE)
        assert holds.wait(120) == 0
    assert len({stage_world.digest(root, STAGE) for root in worlds.values()}) == 1


@contextmanager
def stopped(process: "subprocess.Popen[str]", *, once: Callable[[], bool]) -> Iterator[None]:
    """Stop a process in its tracks as soon as it has begun."""
    eventually(once)
    os.kill(process.pid, signal.SIGSTOP)
    assert process.poll() is None
    yield
