"""Two processes of a stage whose processors or GPUs differ: one checkpoint, which both take up."""

import os
import signal
from pathlib import Path

import pytest

from tasks.running import environment
from tasks.running.ranks import FirstStage
from tests import forked_stages, stage_world
from tests.several import SFT, outcome

STEP = 3


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kinds") / "world"
    stage_world.build(root)
    return root


def on_different_gpus(rank: int) -> None:
    """From now on this process says that it has a GPU which the others have not."""
    environment._device = lambda run: {"device": "cpu", "gpu": f"of process {rank}"}


def interrupted(rank: int) -> None:
    """The same, and the first process is asked to end after a step."""
    on_different_gpus(rank)
    log = FirstStage.log

    def log_and_signal(stage: FirstStage, step: int, metrics: dict[str, float]) -> None:
        log(stage, step, metrics)
        if step == STEP:
            os.kill(os.getpid(), signal.SIGTERM)

    FirstStage.log = log_and_signal  # type: ignore[method-assign]


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "divided"])
def test_processes_on_gpus_of_two_kinds_resume_from_one_checkpoint(
    built: Path, sharded: bool
) -> None:
    stage_world.forget(built, SFT)
    stage_world.set_params(built, "run", {"processes": 2, "sharded": sharded})

    assert forked_stages.run(built, ["tasks.sft"], 2, interrupted) == [0, 0]
    assert outcome(built)["status"] == "interrupted", outcome(built)["message"]
    assert [path.name for path in stage_world.checkpoint_paths(built, SFT)] == ["step-00000003"]

    assert forked_stages.run(built, ["tasks.sft"], 2, on_different_gpus) == [0, 0]
    assert outcome(built)["status"] == "done", outcome(built)["message"]
