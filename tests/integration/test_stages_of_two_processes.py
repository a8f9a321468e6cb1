"""The tiny pipeline by two processes: its numbers, its bytes, its one writer, and its ends.

The processes are forked; what a real launcher adds is in test_several_processes.py.
"""

import importlib
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tasks.running.ranks import OtherStage
from tasks.running.stage import Stage
from tests import forked_stages, stage_world
from tests.several import curves, losses, outcome

pytestmark = pytest.mark.long

SFT = ["tasks.sft"]
SEVERAL = {"sft", "evaluate", "sample", "reward", "ppo", "best_of_n"}
"""Sections whose stages are two processes here."""
WRITES = {"os.mkdir", "os.rename", "os.remove", "shutil.rmtree"}
STEP = 5
"""After it something happens to a process; checkpoints are written after steps 2, 4 and so on."""


def write_nothing(root: Path) -> None:
    """From now on this process kills itself where it opens a file of the world to write."""

    def hear(event: str, found: tuple[object, ...]) -> None:
        opened = event == "open" and isinstance(found[1], str) and set(found[1]) & set("wax+")
        if (event in WRITES or opened) and isinstance(found[0], str | os.PathLike):
            place = Path(os.fspath(found[0])).absolute()
            if place.is_relative_to(root):
                os.write(2, f"{event} {place}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def pipeline(root: Path, processes: int) -> str:
    """Run all stages from nothing; a digest of all that they wrote."""
    stage_world.set_params(root, "run", {"processes": processes})
    for name in ("models", "results", "data/prepared", "data/rounds", ".work"):
        shutil.rmtree(root / name, ignore_errors=True)
    for command in forked_stages.commands(root):
        several = processes if command[0].removeprefix("tasks.") in SEVERAL else 1
        codes = forked_stages.run(
            root, command, several, lambda rank: write_nothing(root) if rank else None
        )
        assert codes == [0] * several, command
    return stage_world.digest_of(root, ("data", "models", "results"))


def sft(root: Path, processes: int = 2, *, rank: int = -1, number: int = 0) -> list[int]:
    """Exit codes of SFT; the process of this rank sends itself the signal after a step."""

    def disturb(own: int) -> None:
        os.environ["RLHF_CHECKPOINT_STEPS"] = "2"
        if own == rank:
            kind = OtherStage if own else Stage
            log = kind.log

            def log_and_signal(stage: Stage, step: int, metrics: dict[str, float]) -> None:
                log(stage, step, metrics)
                if step == STEP:
                    os.kill(os.getpid(), number)

            kind.log = log_and_signal

    stage_world.set_params(root, "run", {"processes": processes})
    return forked_stages.run(root, SFT, processes, disturb)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two") / "main"
    stage_world.copy_tiny_repository(root, rounds=1)
    for module, *_ in forked_stages.commands(root):
        importlib.import_module(module)  # Once, for all that are forked off.
    return root


@pytest.fixture(scope="module")
def by_two(world: Path, assert_close) -> Path:
    """The world with all outputs, of two processes."""
    one, of_one = pipeline(world, 1), curves(world)

    two, of_two = pipeline(world, 2), curves(world)

    trained = {f"results/{name}/history.csv" for name in ("sft", "reward/r1", "ppo/r1")}
    assert of_two.keys() == of_one.keys() >= trained
    for name, rows in of_two.items():
        assert_close(rows, of_one[name], rtol=1e-3, atol=1e-3)
    assert pipeline(world, 2) == two != one
    return world


@pytest.fixture(scope="module")
def straight(by_two: Path) -> str:
    """The digest of an SFT that nobody disturbs."""
    return stage_world.digest(by_two, "sft")


def test_two_processes_come_near_one_and_repeat_their_bytes_and_the_first_alone_writes(
    by_two: Path,
) -> None:
    """All but the last in the fixture, which the other tests need."""
    for stage in ("sft", "baseline", "sample@r1", "reward@r1", "ppo@r1", "evaluate@r1", "test"):
        assert outcome(by_two, stage)["environment"]["processes"] == 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_one_ends_both_and_the_next_run_has_the_same_bytes(
    by_two: Path,
    straight: str,
    rank: int,
    number: signal.Signals,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stage_world.forget(by_two, "sft")

    codes = sft(by_two, rank=rank, number=number)

    killed = number == signal.SIGKILL
    assert codes == [-9 if killed and rank == own else 0 for own in (0, 1)]
    if not (killed and rank == 0):
        assert outcome(by_two)["status"] == ("failed" if killed else "interrupted")
    assert stage_world.digest(by_two, "sft") == ""
    assert sft(by_two) == [0, 0]
    assert "sft resumes from its checkpoint at step" in capfd.readouterr().err
    assert stage_world.digest(by_two, "sft") == straight


def test_one_process_resumes_from_the_checkpoint_of_two(
    by_two: Path, assert_close, capfd: pytest.CaptureFixture[str]
) -> None:
    of_two = losses(by_two)
    stage_world.forget(by_two, "sft")
    assert sft(by_two, rank=1, number=signal.SIGTERM) == [0, 0]

    assert sft(by_two, 1) == [0]

    said = capfd.readouterr().err
    assert "the checkpoint is of a run with 2 processes, this one has 1" in said
    assert_close(losses(by_two), of_two, rtol=1e-4, atol=0)
