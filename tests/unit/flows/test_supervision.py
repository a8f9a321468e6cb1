"""A process of `make ui` that dies is started again, later each time and not for ever."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import servers
from flows.supervision import Supervisor
from tests.waiting import eventually

SLEEPS = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(900)"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[servers.Child]:
    command = [sys.executable, "-c", SLEEPS]
    with servers.running("It", command, env={}, log=tmp_path / "it.log") as running:
        yield running


def kill(child: servers.Child) -> None:
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()


def test_a_process_that_runs_is_left_alone(child: servers.Child):
    pid = child.process.pid
    assert list(Supervisor([child]).look(0.0)) == []
    assert child.process.pid == pid


def test_a_process_that_died_is_started_again_and_its_log_continues(child: servers.Child):
    supervisor, first = Supervisor([child]), child.process.pid
    kill(child)
    (said,) = supervisor.look(0.0)
    assert said == f"It has ended (exit code -9); it starts again in 1 s. Log: {child.log}"
    assert list(supervisor.look(0.9)) == []
    assert list(supervisor.look(1.0)) == ["It has been started again."]
    assert child.process.pid != first
    eventually(lambda: str(child.process.pid) in child.log.read_text())


def test_it_waits_twice_as_long_each_time_and_gives_up_after_five(child: servers.Child):
    supervisor, now = Supervisor([child]), 0.0
    for wait in (1, 2, 4, 8, 16):
        kill(child)
        assert f"again in {wait} s" in next(iter(supervisor.look(now)))
        now += wait
        assert list(supervisor.look(now)) == ["It has been started again."]
    kill(child)
    with pytest.raises(servers.ServerError, match=f"It has ended 6 times.*{child.log}"):
        list(supervisor.look(now))


def test_errors_in_the_log_are_said(child: servers.Child):
    supervisor = Supervisor([child])
    with child.log.open("a") as log:
        log.write("18:15:28 | ERROR   | prefect.server - no such table\n")
    said = [*supervisor.look(0.0), *supervisor.look(1.0)]
    assert said == ["It: prefect.server - no such table"]
