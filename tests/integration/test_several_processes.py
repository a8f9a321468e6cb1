"""A stage as two processes: one result, one writer, and nothing left of either when one dies.

A part of these tests is in `make test-long`, the others are in `make test-slow`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stage_world
from tests.several import (
    DEADLINE_SECONDS,
    SFT,
    TORCHS_SECONDS,
    finish,
    losses,
    outcome,
    processes_in,
    ranks,
    start,
    time_to_hear,
    wait_for_checkpoint,
)

pytestmark = pytest.mark.long

HOOK = """
import os, sys
if os.environ.get("RANK") == "1":
    def heard(event, found):
        wrote = event in ("os.mkdir", "os.rename", "os.remove", "shutil.rmtree") or (
            event == "open" and isinstance(found[1], str) and set(found[1]) & set("wax+"))
        named = wrote and isinstance(found[0], (str, os.PathLike))
        place = os.path.abspath(found[0]) if named else ""
        if place.startswith(os.environ["WATCHED"]):
            os.write(2, f"{event} {place}\\n".encode())
            os.kill(os.getpid(), 9)
    sys.addaudithook(heard)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world, SFT of two epochs, by one process."""
    root = tmp_path_factory.mktemp("several") / "world"
    stage_world.build(root)
    stage_world.set_params(root, "sft", {"epochs": 30})
    return root


@pytest.fixture(scope="module")
def with_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world as it was built: another SFT would not be that of the round's responses."""
    root = tmp_path_factory.mktemp("round") / "world"
    stage_world.build(root)
    return root


@pytest.fixture
def world(built: Path) -> Iterator[Path]:
    stage_world.forget(built, SFT)
    stage_world.set_params(built, "run", {"processes": 2, "sharded": False})
    yield built
    assert processes_in(built) == []


@pytest.fixture(scope="module")
def digest_of_two(built: Path) -> str:
    stage_world.forget(built, SFT)
    stage_world.set_params(built, "run", {"processes": 2, "sharded": False})
    code, said = finish(built)
    assert code == 0, said
    return stage_world.digest(built, SFT)


def test_two_processes_repeat_their_bytes_and_come_near_those_of_one(
    world: Path, digest_of_two: str, assert_close
) -> None:
    assert finish(world)[0] == 0
    found, digest = losses(world), stage_world.digest(world, SFT)
    manifest = json.loads((world / "models/sft/manifest.json").read_text())

    stage_world.set_params(world, "run", {"processes": 1})
    stage_world.forget(world, SFT)
    assert finish(world)[0] == 0

    assert digest == digest_of_two != stage_world.digest(world, SFT)
    assert manifest["params"]["run"]["processes"] == 2
    assert_close(found, losses(world), rtol=1e-4, atol=0)


@pytest.mark.slow
def test_only_the_first_process_writes(world: Path, tmp_path: Path) -> None:
    """Another one that opens a file of the world to write would kill itself."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = f"{tmp_path}{os.pathsep}{stage_world.ROOT}"

    code, said = finish(world, PYTHONPATH=path, WATCHED=str(world), RLHF_CHECKPOINT_STEPS="40")

    assert code == 0, said
    assert outcome(world)["checkpoints"] > 0


@pytest.mark.parametrize("rank", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_the_death_of_one_ends_both_and_the_next_run_has_the_same_bytes(
    world: Path, digest_of_two: str, rank: str
) -> None:
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)

    os.kill(ranks(world)[rank], signal.SIGKILL)
    _, said = process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 1, said
    assert processes_in(world) == []
    if rank == "1":
        assert outcome(world)["status"] == "failed"
        assert "another of the stage's processes has ended" in outcome(world)["message"]
    code, said = finish(world)
    assert code == 0
    assert "sft resumes from its checkpoint at step" in said
    assert stage_world.digest(world, SFT) == digest_of_two


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_death_of_one_ends_another_that_hears_nothing(world: Path, rank: str) -> None:
    """Stopped, it is as deaf as one that waits inside a GPU's library for the dead one."""
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)
    found = ranks(world)
    deaf = found["0" if rank == "1" else "1"]
    os.kill(deaf, signal.SIGSTOP)

    os.kill(found[rank], signal.SIGKILL)
    assert time_to_hear(deaf) < TORCHS_SECONDS
    _, said = process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 1, said
    assert "sft: its first process died; run it again to resume" in said
    assert processes_in(world) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_stage_reaches_both_and_the_next_run_has_the_same_bytes(
    world: Path, digest_of_two: str, number: signal.Signals
) -> None:
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)

    process.send_signal(number)
    _, said = process.communicate()

    assert process.returncode == 143, said
    assert outcome(world)["status"] == "interrupted"
    assert "Traceback" not in said
    assert finish(world)[0] == 0
    assert stage_world.digest(world, SFT) == digest_of_two


@pytest.mark.slow
def test_the_death_of_the_stage_ends_both(world: Path) -> None:
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)

    process.kill()
    process.communicate()  # Until nobody holds its stderr.

    while processes_in(world):
        time.sleep(0.05)


@pytest.mark.slow
def test_one_process_resumes_from_the_checkpoint_of_two(world: Path, assert_close) -> None:
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)
    process.terminate()
    process.communicate()
    stage_world.set_params(world, "run", {"processes": 1})

    code, said = finish(world)

    assert code == 0
    assert "the checkpoint is of a run with 2 processes, this one has 1" in said
    found = losses(world)
    stage_world.forget(world, SFT)
    assert finish(world)[0] == 0
    assert_close(found, losses(world), rtol=1e-4, atol=0)


@pytest.mark.parametrize("stage", ["ppo@r1", pytest.param("reward@r1", marks=pytest.mark.slow)])
def test_divided_weights_repeat_their_bytes_and_come_near_those_of_one_process(
    with_round: Path, assert_close, stage: str
) -> None:
    folder = with_round / stage_world.OUTPUTS[stage][1]

    def run(processes: int, sharded: bool) -> tuple[str, list[list[float]]]:
        stage_world.set_params(with_round, "run", {"processes": processes, "sharded": sharded})
        stage_world.forget(with_round, stage)
        code, said = finish(with_round, stage)
        assert code == 0, said
        lines = (folder / "history.csv").read_text().splitlines()[1:]
        rows = [[float(number or 0) for number in line.split(",")] for line in lines]
        return stage_world.digest(with_round, stage), rows

    digest, rows = run(2, True)

    assert run(2, True)[0] == digest
    assert_close(rows, run(1, False)[1], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_divided_weights_resume_to_the_same_bytes_when_one_process_has_died(
    world: Path, rank: str
) -> None:
    stage_world.set_params(world, "run", {"sharded": True})
    assert finish(world)[0] == 0
    straight = stage_world.digest(world, SFT)
    stage_world.forget(world, SFT)
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)

    os.kill(ranks(world)[rank], signal.SIGKILL)
    _, said = process.communicate()

    assert process.returncode == 1, said
    assert processes_in(world) == []
    code, said = finish(world)
    assert code == 0
    assert "sft resumes from its checkpoint at step" in said
    assert stage_world.digest(world, SFT) == straight


def test_bad_input_is_said_once_and_ends_as_with_one_process(world: Path) -> None:
    stage_world.set_params(world, "sft", {"max_tokens": 2})
    try:
        code, said = finish(world)
    finally:
        stage_world.set_params(world, "sft", {"max_tokens": 1000})

    assert code == 2
    assert said.count("sft: none of 64 demonstrations has at most 2 tokens") == 1
    assert "Traceback" not in said


@pytest.mark.slow
def test_another_launcher_may_start_them(world: Path, digest_of_two: str) -> None:
    launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"

    assert finish(world, RLHF_LAUNCH=launcher)[0] == 0

    assert stage_world.digest(world, SFT) == digest_of_two


@pytest.mark.slow
def test_a_launcher_that_starts_another_number_is_refused(world: Path) -> None:
    launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 3"

    code, said = finish(world, RLHF_LAUNCH=launcher)

    assert code == 2
    assert "run.processes is 2, but WORLD_SIZE is 3" in said
