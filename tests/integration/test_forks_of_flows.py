"""Stages of a flow run are forks of one process, and end with the flow run, DVC or that process."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows.forking import forks
from flows.graph import PlannedStage
from flows.stages import Ending, run_stage
from tasks.workspace.processes import children
from tests.background import hear_signals
from tests.integration.fork_world import (
    REPOSITORY,
    said,
    started,
    world_fixture,  # noqa: F401
)
from tests.waiting import eventually, is_alive

MEMBERS = ("flow", "dvc", "asker", "server", "fork")
FLOW = f"""
import logging, signal, sys
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
from flows.forking import forks
from flows.stages import run_stage
from tests.integration.test_forks_of_flows import planned
class Cancelled(BaseException): ...
def cancel(*_): raise Cancelled
signal.signal(signal.SIGTERM, cancel)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
with forks([planned("sft"), planned("test")], Path.cwd(), "e1"):
    run_stage("sft", Path.cwd(), execution="e1", logger=logging.getLogger())
"""


def planned(name: str, *, gpu: bool = True, stale: bool = True) -> PlannedStage:
    return PlannedStage(name=name, round=None, gpu=gpu, ends_round=False, stale=stale)


@pytest.fixture(name="flow_world")
def flow_world_fixture(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The world with DVC, whose stages only say what they are."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(world / "site"))
    monkeypatch.setenv("SHELL", "/bin/sh")
    for name in ("RLHF_GPU_POOL", "RLHF_CPU_POOL"):
        monkeypatch.delenv(name, raising=False)
    Repo.init(str(world), no_scm=True)
    return world


def define(world: Path, **wanted: str) -> None:
    lines = [
        f"  {stage}: {{cmd: exec python -m tasks.sft {what}, outs: [out/{what}.json]}}\n"
        for stage, what in wanted.items()
    ]
    (world / "dvc.yaml").write_text(f"stages:\n{''.join(lines)}")


def run(world: Path, stage: str) -> Ending:
    return run_stage(stage, world, execution="e1", logger=logging.getLogger("forks"))


def test_all_stages_of_a_flow_run_are_forks_of_one_process(flow_world: Path) -> None:
    define(flow_world, sft="0", test="00", sample="3")

    with forks([planned("sft"), planned("test")], flow_world, "e1"):
        assert [run(flow_world, stage).how for stage in ("sft", "test")] == ["ran", "ran"]
        assert run(flow_world, "sample").how == "stopped"
        first, second, third = (said(flow_world, wanted) for wanted in ("0", "00", "3"))

        assert first["parent"] == second["parent"] == third["parent"]
        assert os.getsid(first["parent"]) == first["parent"]
        assert is_alive(first["parent"])
    assert not is_alive(first["parent"])
    assert "RLHF_FORK_SERVER" not in os.environ
    assert first["environment"]["RLHF_EXECUTION"] == "e1"


@pytest.mark.parametrize(
    "stages",
    [
        [planned("sft")],
        [planned("sft"), planned("test", stale=False)],
        [planned("sft"), planned("report", gpu=False)],
    ],
)
def test_there_is_no_server_where_it_would_spare_nothing(
    flow_world: Path, stages: list[PlannedStage]
) -> None:
    with forks(stages, flow_world, "e1"):
        assert "RLHF_FORK_SERVER" not in os.environ


def test_there_is_none_for_stages_that_run_in_a_pool(
    flow_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_GPU_POOL", "elsewhere")
    with forks([planned("sft"), planned("test")], flow_world, "e1"):
        assert "RLHF_FORK_SERVER" not in os.environ


def test_a_workspace_of_a_revision_without_a_server_has_stages_of_their_own(
    flow_world: Path,
) -> None:
    (flow_world / "tasks/running/fork_server.py").unlink()
    define(flow_world, sft="0")
    with forks([planned("sft"), planned("test")], flow_world, "e1"):
        assert "RLHF_FORK_SERVER" not in os.environ
        assert run(flow_world, "sft").how == "ran"


def flow(world: Path) -> "subprocess.Popen[bytes]":
    """A flow run whose stage waits."""
    define(world, sft="wait")
    return subprocess.Popen([sys.executable, "-c", FLOW], cwd=world, preexec_fn=hear_signals)


def members(world: Path, flow_run: "subprocess.Popen[bytes]") -> dict[str, int]:
    """Its processes, once the stage waits."""
    stage = started(world)
    dvc = int(stage["environment"]["RLHF_STARTED_BY"])
    (asker,) = children(dvc)
    pids = (flow_run.pid, dvc, asker, stage["parent"], stage["pid"])
    return dict(zip(MEMBERS, pids, strict=True))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_flow_run_reaches_its_stage(
    flow_world: Path, number: signal.Signals
) -> None:
    flow_run = flow(flow_world)
    everybody = members(flow_world, flow_run)
    flow_run.send_signal(number)
    flow_run.wait(60)
    assert (flow_world / "asked").read_text() == f"{int(number)} "
    assert (flow_world / "saved").exists()
    assert not any(map(is_alive, everybody.values()))


@pytest.mark.parametrize("killed", MEMBERS)
def test_whoever_is_killed_nobody_is_left(flow_world: Path, killed: str) -> None:
    flow_run = flow(flow_world)
    everybody = members(flow_world, flow_run)
    os.kill(everybody[killed], signal.SIGKILL)
    flow_run.wait(60)
    eventually(lambda: not any(map(is_alive, everybody.values())), 10)
    # What is killed itself, or with the process that DVC knows, has no time for a checkpoint.
    assert (flow_world / "saved").exists() == (killed in ("flow", "dvc", "server"))
