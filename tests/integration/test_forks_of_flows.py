"""Stages of a flow run are forks of one process, and end with the flow run, DVC or that process."""

import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest

from flows.forking import forks
from flows.graph import PlannedStage
from flows.stages import Ending, run_stage
from tests.integration.flow_world import start_driver
from tests.integration.fork_world import (
    MEMBERS,
    define,
    kill_one,
    members,
    said,
    world_fixture,  # noqa: F401
)
from tests.waiting import PATIENCE_SECONDS, is_alive

FLOW = """
from flows.forking import forks
from tests.integration.test_forks_of_flows import planned
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
    return world


def run(world: Path, stage: str) -> Ending:
    return run_stage(stage, world, execution="e1", logger=logging.getLogger("forks"))


def test_all_stages_of_a_flow_run_are_forks_of_one_process(flow_world: Path) -> None:
    define(flow_world, sft="sft 0", test="sft 00", sample="sft 3")

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
    define(flow_world, sft="sft 0")
    with forks([planned("sft"), planned("test")], flow_world, "e1"):
        assert "RLHF_FORK_SERVER" not in os.environ
        assert run(flow_world, "sft").how == "ran"


def flow(world: Path) -> "subprocess.Popen[str]":
    """A flow run whose stage waits."""
    define(world, sft="sft wait")
    return start_driver(world, FLOW)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_to_the_flow_run_reaches_its_stage(
    flow_world: Path, number: signal.Signals
) -> None:
    flow_run = flow(flow_world)
    everybody = members(flow_world, flow_run)
    flow_run.send_signal(number)
    flow_run.communicate(timeout=PATIENCE_SECONDS)
    assert (flow_world / "asked").read_text() == f"{int(number)} "
    assert (flow_world / "saved").exists()
    assert not any(map(is_alive, everybody.values()))


@pytest.mark.long
@pytest.mark.parametrize("killed", MEMBERS)
def test_whoever_is_killed_nobody_is_left(flow_world: Path, killed: str) -> None:
    kill_one(flow_world, flow(flow_world), killed)
