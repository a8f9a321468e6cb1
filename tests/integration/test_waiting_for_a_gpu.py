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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.workspace.held import held, is_held
from tests import stage_world
from tests.integration.tiny_checkout import World
from tests.paused import paused
from tests.several import processes_in
from tests.waiting import PATIENCE_SECONDS, eventually, waits_for_a_lock

pytestmark = pytest.mark.long

STAGE = "sft"


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the same inputs, in which the stage has not run yet; in one as two processes."""
    folder = tmp_path_factory.mktemp("gpus")
    first = folder / "holds"
    stage_world.build(first)
    stage_world.set_params(first, "run", {"device": "auto"})
    stage_world.forget(first, STAGE)
    for name in ("waits", "has_another", "several"):
        shutil.copytree(first, folder / name, symlinks=True)
    stage_world.set_params(folder / "several", "run", {"processes": 2})
    return {path.name: path for path in folder.iterdir()}


@contextmanager
def stage(root: Path, gpus: str, **more: str) -> Iterator["subprocess.Popen[str]"]:
    path = filter(None, [more.pop("PYTHONPATH", None), str(stage_world.ROOT)])
    environment = stage_world.environment(
        root,
        PYTHONPATH=os.pathsep.join(path),
        TMPDIR=str(root.parent),
        CUDA_VISIBLE_DEVICES=gpus,
        RLHF_EXECUTION="tiny",
        **more,
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


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    """Two checkouts of the repository, made tiny, in which `base` is next."""
    folder = tmp_path_factory.mktemp("clones")
    environment = stage_world.environment(folder, TMPDIR=str(folder), CUDA_VISIBLE_DEVICES="0,1")
    first = World(folder / "first", environment)
    stage_world.copy_tiny_repository(first.root, rounds=1)
    yaml = YAML()
    params = yaml.load(first.root / "params.yaml")
    params["run"]["device"] = "auto"
    yaml.dump(params, first.root / "params.yaml")
    first.git("init", "--quiet", "--initial-branch=main")
    first.dvc("repro", "prepare")
    first.git("add", "--all")
    first.git("commit", "--quiet", "-m", "tiny")
    second = World(Path(shutil.copytree(first.root, folder / "second")), environment)
    return first, second


@contextmanager
def repro(world: World, paused: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A plain `dvc repro` of `base`, which stands still in the middle of its training."""
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", "base"]
    environment = world.environment | paused
    process = subprocess.Popen(
        command, cwd=world.root, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: any(world.root.glob(".work/base/*/step-*")))
        yield process
    finally:
        for each in processes_in(world.root):
            os.kill(each, signal.SIGKILL)
        process.communicate()


def test_a_stage_waits_for_its_gpu_and_another_one_beside_it_runs(
    worlds: dict[str, Path], tmp_path: Path
):
    with ExitStack() as running:
        with paused(tmp_path / "paused") as still:
            holds = running.enter_context(stage(worlds["holds"], "0", **still))
            eventually(lambda: any(worlds["holds"].glob(f".work/{STAGE}/*/step-*")))
            waits = running.enter_context(stage(worlds["waits"], "0"))
            has_another = running.enter_context(stage(worlds["has_another"], "0,1"))
            _, said = has_another.communicate(timeout=PATIENCE_SECONDS)
            assert (has_another.returncode, "for GPU" in said) == (0, False)
            # It began before that one, and has computed nothing.
            time.sleep(2)
            assert waits.poll() is None
            assert not (worlds["waits"] / ".work" / STAGE).exists()
        _, said = waits.communicate(timeout=PATIENCE_SECONDS)
        assert waits.returncode == 0
        assert re.search(r"^waited \d+ s for GPU 0$", said, re.MULTILINE)
        assert holds.wait(PATIENCE_SECONDS) == 0
    ran = [root for name, root in worlds.items() if name != "several"]
    assert len({stage_world.digest(root, STAGE) for root in ran}) == 1


LOOKS = """
import os, sys
looks = []
def heard(event, found):
    if event == "open" and str(found[0]).endswith("/gpu-0.lock"):
        looks.append(event)
        if len(looks) == 2:
            os.mkdir(os.environ["LOOKED"])
sys.addaudithook(heard)
"""
"""Makes a folder when a process looks once more whether the first GPU is free."""


@pytest.mark.parametrize("lock", ["several.lock", "gpu-0.lock", "stage.lock"])
def test_a_ctrl_c_ends_the_wait_of_several_processes_in_one_line(
    worlds: dict[str, Path], tmp_path: Path, lock: str
):
    """Before they start, for a GPU of one of them, and for another stage."""
    root, looked = worlds["several"], tmp_path / "looked"
    (tmp_path / "sitecustomize.py").write_text(LOOKS)
    (root / ".work").mkdir(exist_ok=True)
    shared = root.parent / f"rlhf-rounds-{os.getuid()}"
    shared.mkdir(exist_ok=True)
    more = {"PYTHONPATH": str(tmp_path), "LOOKED": str(looked)}
    with held((root / ".work" if lock == "stage.lock" else shared) / lock):
        with stage(root, "0,1", **more) as process:
            if lock == "gpu-0.lock":
                eventually(looked.exists)
            elif lock == "stage.lock":
                eventually(lambda: any(map(waits_for_a_lock, processes_in(root))))
            else:
                eventually(lambda: waits_for_a_lock(process.pid))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert processes_in(root) == []
    assert (process.returncode, said) == (143, "sft: interrupted; run it again to resume\n")


def test_two_checkouts_run_dvc_repro_side_by_side_on_two_gpus(
    clones: tuple[World, World], tmp_path: Path
):
    locks = [
        Path(clones[0].environment["TMPDIR"], f"rlhf-rounds-{os.getuid()}/gpu-{number}.lock")
        for number in (0, 1)
    ]
    with ExitStack() as running:
        with paused(tmp_path / "paused") as still:
            both = [running.enter_context(repro(world, still)) for world in clones]
            assert all(process.poll() is None for process in both)
            assert all(is_held(lock) for lock in locks)
        for process in both:
            _, said = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, said
    entries = [YAML().load(world.root / "dvc.lock")["stages"]["base"] for world in clones]
    assert entries[0] == entries[1]
