"""Two processes: one is asked to end or cannot write; both take up the checkpoint of one."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stage_world
from tests.several import (
    DEADLINE_SECONDS,
    SFT,
    finish,
    losses,
    outcome,
    processes_in,
    ranks,
    start,
    wait_for_checkpoint,
)

pytestmark = pytest.mark.slow

READ_ONLY = """
set -e
[ "$RANK" = 1 ] || exec "$PYTHON" "$@"
exec unshare --mount sh -e -c '
    mount --bind -o ro "$PWD" "$PWD"
    cd "$PWD"
    if touch written 2>/dev/null; then exit 9; fi
    exec "$PYTHON" "$@"
' sh "$@"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world; from here on SFT takes long enough to be disturbed."""
    root = tmp_path_factory.mktemp("ends") / "world"
    stage_world.build(root)
    return root


def long_sft(root: Path, **run: object) -> None:
    stage_world.forget(root, SFT)
    stage_world.set_params(root, "sft", {"epochs": 30})
    stage_world.set_params(root, "run", {"processes": 2, "sharded": False, **run})


@pytest.fixture
def world(built: Path) -> Iterator[Path]:
    yield built
    assert processes_in(built) == []


@pytest.fixture(scope="module")
def straight(built: Path) -> dict[bool, tuple[str, list[float]]]:
    """Whether weights are divided -> digest and losses of an SFT that nobody disturbs."""
    found = {}
    for sharded in (False, True):
        long_sft(built, sharded=sharded)
        code, said = finish(built)
        assert code == 0, said
        found[sharded] = stage_world.digest(built, SFT), losses(built)
    return found


def logged_steps(root: Path) -> list[int]:
    (path,) = (root / ".work/spool" / SFT).glob("*/metrics.jsonl")
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_all_but_the_first_process_can_do_without_writing(built: Path, tmp_path: Path) -> None:
    """The second sees the whole world read-only. SFT is last: the others need that of `build`."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a read-only view for one process takes Linux and root")
    script = tmp_path / "start.sh"
    script.write_text(READ_ONLY)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher = shlex.join([*run, "--no-python", "sh", str(script)])
    stage_world.set_params(built, "run", {"processes": 2, "sharded": False})
    given = built / "data/prepared/preferences"
    given.mkdir()
    for name in ("train.jsonl", "heldout.jsonl"):
        (given / name).touch()

    for stage in ("ppo@r1", "sample@r1", SFT):
        code, said = finish(
            built,
            stage,
            RLHF_LAUNCH=launcher,
            PYTHON=sys.executable,
            RLHF_CHECKPOINT_STEPS="1",
        )
        assert code == 0, said
        assert outcome(built, stage)["environment"]["processes"] == 2
        assert (outcome(built, stage)["checkpoints"] > 0) == (stage != "sample@r1")
    assert not (built / "written").exists()


@pytest.mark.parametrize(
    ("rank", "sharded"),
    [("0", False), ("1", False), ("1", True)],
    ids=["first", "other", "divided"],
)
def test_a_sigterm_to_one_process_ends_both_after_the_same_step(
    world: Path, straight: dict[bool, tuple[str, list[float]]], rank: str, sharded: bool
) -> None:
    long_sft(world, sharded=sharded)
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)

    os.kill(ranks(world)[rank], signal.SIGTERM)
    _, said = process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 143, said
    assert processes_in(world) == []
    assert outcome(world)["status"] == "interrupted"
    assert "Traceback" not in said
    last = logged_steps(world)[-1]
    assert last < len(straight[sharded][1])
    assert stage_world.checkpoint_paths(world, SFT)[0].name == f"step-{last:08d}"
    code, said = finish(world)
    assert code == 0, said
    assert f"sft resumes from its checkpoint at step {last}" in said
    assert stage_world.digest(world, SFT) == straight[sharded][0]


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "divided"])
def test_two_processes_resume_from_the_checkpoint_of_one(
    world: Path, straight: dict[bool, tuple[str, list[float]]], assert_close, sharded: bool
) -> None:
    long_sft(world, processes=1)
    process = start(world, RLHF_CHECKPOINT_STEPS="5")
    wait_for_checkpoint(world, process)
    process.terminate()
    process.communicate()
    assert outcome(world)["status"] == "interrupted"
    assert outcome(world)["environment"]["processes"] == 1
    stage_world.set_params(world, "run", {"processes": 2, "sharded": sharded})

    code, said = finish(world)

    assert code == 0, said
    assert "sft resumes from its checkpoint at step" in said
    assert "the checkpoint is of a run with 1 process, this one has 2 processes" in said
    assert outcome(world)["environment"]["processes"] == 2
    digest, of_two = straight[sharded]
    assert_close(losses(world), of_two, rtol=1e-4, atol=0)
    assert stage_world.digest(world, SFT) != digest
