"""What Prefect says of runs is true, whoever is killed, and how they end is told by a webhook once.

A real server and worker, DVC, and a receiver on 127.0.0.1. Silence counts after a minute here.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows import silent
from flows.environment import HEARTBEAT_SECONDS
from tests.integration.truthful_world import SILENT_SECONDS, Receiver, World, process_of
from tests.waiting import eventually, is_alive

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("states"), Receiver())
    with world.served():
        yield world


def test_every_end_is_told_once(world: World):
    with world.worker():
        ends = {"people": "Waiting", "bad": "Blocked", "diverged": "Stopped", "wrong": "BadInput"}
        for run, end in ends.items():
            form = {"overrides": {"ppo.kl_coeff": 1}} if run == "wrong" else {}
            flow_run = world.order(run, **form)
            assert world.orders.ended(flow_run)["name"] == end
            world.told(run, end)
        (told,) = (each for each in world.receiver.told if each["run"] == "bad")
        assert told["text"] == 'bad: Blocked. sft: what "it" says'
        assert told["page"] == f"{world.server.url}/runs/flow-run/{told['flow_run']}"
        # Continued, it ends another time, as another run of Prefect's.
        assert world.orders.ended(world.order("people"))["name"] == "Completed"
        world.told("people", "Waiting", "Completed")


def test_a_stage_that_is_killed_and_tried_again_is_no_end_of_the_run(world: World):
    with world.worker():
        assert world.orders.ended(world.order("broken"))["name"] == "Completed"
        assert (world.common / "broken.tries").read_text() == "xx"
        world.told("broken", "Completed")


@pytest.mark.slow
def test_a_long_silent_stage_is_no_crash_and_a_killed_flow_is_one(world: World):
    with world.worker():
        long, _ = world.started("long")
        began = time.monotonic()
        killed, stage = world.started("killed-flow")
        before = world.runs_of_all()
        os.kill(process_of(killed), signal.SIGKILL)
        assert world.orders.ended(killed)["name"] == "Crashed"
        eventually(lambda: world.tasks(killed) == ["Crashed"])
        eventually(lambda: not is_alive(stage))
        world.told("killed-flow", "Crashed")
        # Called dead by mistake, it is alive with its next heartbeat; then it is cancelled.
        cancelled, stage = world.started("killed-by-cancel")
        world.set_state(cancelled, "CRASHED")
        eventually(lambda: world.states(cancelled)[-2:] == ["Crashed", "Running"])
        world.set_state(cancelled, "CANCELLING")
        assert world.orders.ended(cancelled)["name"] == "Cancelled"
        assert not is_alive(stage)
        world.told("killed-by-cancel", "Cancelled")
        assert world.orders.ended(long)["name"] == "Completed"
        assert time.monotonic() - began > SILENT_SECONDS + HEARTBEAT_SECONDS, "not long enough"
        states = world.states(long)
        assert "Crashed" not in states
        assert (states.count("Running"), states[-1]) == (1, "Completed")
        world.told("long", "Completed")
        assert world.runs_of_all() == before + 1


def test_who_is_killed_while_it_goes_on_still_waits_for_people(world: World):
    with world.worker():
        killed, stage = world.goes_on("again-killed")
        world.feedback("No run waits for people.")  # It works.
        os.kill(process_of(killed), signal.SIGKILL)
        assert world.orders.ended(killed)["name"] == "Crashed"
        eventually(lambda: not is_alive(stage))
        world.feedback("Ordered to continue: again-killed")
        again = eventually(lambda: world.orders.runs("again-killed")[2:])
        assert world.orders.ended(again[0])["name"] == "Completed"
        world.feedback("No run waits for people.")


def test_who_is_cancelled_while_it_goes_on_waits_no_more(world: World):
    with world.worker():
        cancelled, _ = world.goes_on("again-cancelled")
        world.set_state(cancelled, "CANCELLING")
        assert world.orders.ended(cancelled)["name"] == "Cancelled"
        world.feedback("No run waits for people.")


def test_who_loses_the_worker_has_crashed_and_so_have_the_tasks(world: World):
    with world.worker() as worker:
        flow_run, stage = world.started("killed-worker")
        flow, before = process_of(flow_run), world.runs_of_all()
        worker.kill()
        state = world.orders.ended(flow_run)
        assert state["name"] == "Crashed"
        eventually(lambda: not is_alive(stage) and not is_alive(flow))
        eventually(lambda: world.tasks(flow_run) == ["Crashed"])
        world.told("killed-worker", "Crashed")
        assert world.runs_of_all() == before


@contextmanager
def stage_of_another_machine(world: World) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of a flow run `rlhf-stage`, as a worker of a pool starts it in its clone."""
    origin = world.folder / "origin.git"
    world.git("init", "--quiet", "--bare", "--initial-branch=main", str(origin))
    world.git("push", "--quiet", str(origin), "main")
    clone = world.folder / "clone"
    world.git("clone", "--quiet", str(origin), str(clone))
    remote = ("remote", "add", "--local", "--default", "shared", str(world.folder / "data"))
    (world.folder / "data").mkdir()
    world.dvc(*remote, cwd=clone)
    code = "from flows.stage_flow import remote_stage; remote_stage(stage='sft', revision='main')"
    with subprocess.Popen([sys.executable, "-c", code], cwd=clone, env=world.env) as process:
        yield process
        process.kill()


@pytest.mark.slow
def test_where_all_are_killed_the_server_says_so_by_itself(world: World):
    with world.worker() as worker, stage_of_another_machine(world) as elsewhere:
        flow_run, stage = world.started("killed-both")
        eventually(lambda: list(world.common.glob("sft-*.pid")))
        flow, before = process_of(flow_run), world.runs_of_all()
        worker.kill()
        elsewhere.kill()
        os.kill(flow, signal.SIGKILL)
        killed = time.monotonic()
        state = world.orders.ended(flow_run)
        sys.stdout.write(f"Crashed after {time.monotonic() - killed:.0f} s\n")
        assert (state["name"], state["message"]) == (
            "Crashed",
            silent.MESSAGE.format(seconds=SILENT_SECONDS),
        )
        assert not is_alive(stage)
        # Its machine is gone, and whoever ordered it on another waits: nobody else would say so.
        body = {"flows": {"name": {"any_": ["rlhf-stage"]}}}
        (there,) = world.orders.ask("POST", "/flow_runs/filter", body).json()
        assert world.orders.ended(there["id"])["message"] == state["message"]
        world.told("killed-both", "Crashed")
        assert world.runs_of_all() == before
    with world.worker():
        eventually(lambda: world.tasks(flow_run) == ["Crashed"])
        time.sleep(5)
        assert world.runs_of_all() == before
    world.told("killed-both", "Crashed")


@pytest.mark.slow
def test_where_the_server_is_killed_too_it_says_so_when_it_is_back(tmp_path: Path):
    world = World(tmp_path, Receiver())
    with world.served(), world.worker() as worker:
        flow_run, stage = world.started("killed-with-all")
        flow, before = process_of(flow_run), world.runs_of_all()
        kill_together(flow, worker.pid, world.server.child.process.pid)
    with world.served():
        state = world.orders.ended(flow_run)
        assert (state["name"], state["message"]) == (
            "Crashed",
            silent.MESSAGE.format(seconds=SILENT_SECONDS),
        )
        assert not is_alive(stage)
        # The flow is told by the kernel, and has no server to tell.
        with world.worker() as worker:
            eventually(lambda: world.tasks(flow_run) == ["Crashed"])
            flow_run, stage = world.started("killed-with-the-server")
            kill_together(worker.pid, world.server.child.process.pid)
    with world.served():
        # `worker` makes the automation anew, which would know of no heartbeat.
        assert world.orders.ended(flow_run)["name"] == "Crashed"
        assert not is_alive(stage)
        with world.worker():
            eventually(lambda: world.tasks(flow_run) == ["Crashed"])
            time.sleep(5)
            assert world.runs_of_all() == before + 1


def kill_together(*processes: int) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_can_be_cancelled_after_the_server_was_away(world: World):
    with world.worker():
        flow_run, stage = world.started("killed-after-a-restart")
        server = world.server.child
        server.process.kill()
        time.sleep(20)
        server.start_again()
        world.server.wait()
        world.set_state(flow_run, "CANCELLING")
        assert world.orders.ended(flow_run)["name"] == "Cancelled"
        assert not is_alive(stage)
        world.told("killed-after-a-restart", "Cancelled")


DEAF = """
import ctypes, signal
signal.signal(signal.SIGUSR1, lambda *_: ctypes.PyDLL(None).sleep(4))
"""
"""At this signal a process holds the interpreter's lock for a while."""


def test_a_run_that_hears_late_of_its_cancel_is_cancelled_and_no_crash(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As one that is loading its libraries on a busy machine."""
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    path = f"{tmp_path}{os.pathsep}{world.env['PYTHONPATH']}"
    monkeypatch.setitem(world.env, "PYTHONPATH", path)
    with world.worker():
        flow_run, stage = world.started("killed-while-deaf")
        os.kill(process_of(flow_run), signal.SIGUSR1)
        world.set_state(flow_run, "CANCELLING")
        assert world.orders.ended(flow_run)["name"] == "Cancelled"
        assert not is_alive(stage)
        world.told("killed-while-deaf", "Cancelled")


def test_a_run_that_hears_of_its_cancel_before_its_worker_tells_of_it_too(world: World):
    with world.worker() as worker:
        flow_run, stage = world.started("cancelled-by-itself")
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            world.set_state(flow_run, "CANCELLING")
            assert world.orders.ended(flow_run)["name"] == "Cancelled"
            assert not is_alive(stage)
            world.told("cancelled-by-itself", "Cancelled")
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        world.told("cancelled-by-itself", "Cancelled")
