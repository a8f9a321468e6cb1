"""How stages that are forks end, and who ends with them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.fork_world import (
    MEMBERS,
    drive,
    edit,
    kill_one,
    members,
    said,
    serving,
    start,
    started,
    world_fixture,  # noqa: F401
)
from tests.waiting import eventually, is_alive

SIGNALS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)


def test_a_sigterm_reaches_the_stage(world: Path) -> None:
    with serving(world):
        process = start(world, "wait")
        started(world)
        process.terminate()
        process.communicate()
    assert process.returncode == 7
    assert (world / "asked").read_text() == "15 "


def test_a_ctrl_c_is_not_passed_on(world: Path) -> None:
    """The whole session gets it, and a second one would end a stage at once."""
    with serving(world) as server:
        process = start(world, "wait")
        stage = started(world)
        for each in (server, process):
            each.send_signal(signal.SIGINT)
        os.kill(stage["pid"], signal.SIGTERM)
        process.communicate()
        assert process.returncode == 7
        assert (world / "asked").read_text() == "15 "
        assert server.poll() is None
    assert not stage["ignores"]


def test_each_ctrl_c_is_passed_on_to_a_stage_of_another_session(world: Path) -> None:
    with serving(world, apart=True):
        process = start(world, "wait")
        started(world)
        process.send_signal(signal.SIGINT)
        eventually((world / "asked").exists)
        process.send_signal(signal.SIGINT)  # In the 0.3 seconds that its checkpoint takes.
        process.communicate(timeout=60)
    assert process.returncode == 7
    assert (world / "asked").read_text() == "2 2 "


def test_a_stage_under_nohup_hears_no_ctrl_c(world: Path) -> None:
    with serving(world):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = start(world, "0")
        finally:
            signal.signal(signal.SIGINT, before)
        process.communicate()
    assert said(world, "0")["ignores"]


def test_a_sigkill_ends_the_stage_too(world: Path) -> None:
    with serving(world):
        process = start(world, "wait")
        stage = started(world)
        process.kill()
        process.communicate()  # Ends when the stage has closed the streams.
        assert not (world / "saved").exists()
        eventually(lambda: not is_alive(stage["pid"]))
        start(world, "0").communicate()
        assert said(world, "0")["parent"] == stage["parent"]


def test_a_server_that_is_killed_asks_its_stage_to_end(world: Path) -> None:
    with serving(world) as server:
        process = start(world, "wait")
        stage = started(world)
        server.kill()
        process.wait()
        assert (world / "asked").read_text() == "15 "
        assert (world / "saved").exists()
        assert process.returncode == 143
        assert not is_alive(stage["pid"])
        process.communicate()


def test_it_ends_with_dvc_and_the_last_stage(world: Path) -> None:
    with serving(world) as server:
        assert server.stdin is not None
        process = start(world, "wait")
        started(world)
        server.stdin.close()
        server.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(1)
        process.terminate()
        process.communicate()
        assert process.returncode == 7
        assert server.wait(60) == 0


def test_a_server_that_is_killed_while_others_wait_leaves_these_to_themselves(world: Path) -> None:
    edit(world, "    gc.freeze()\n", "    import time; time.sleep(600)\n")
    with serving(world) as server:
        process = start(world, "0")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        server.kill()
        process.communicate()
    assert process.returncode == 0
    assert said(world, "0")["pid"] == process.pid


@SIGNALS
def test_while_the_server_imports_a_signal_ends_who_waits_for_it(
    world: Path, number: signal.Signals
) -> None:
    edit(world, "    gc.freeze()\n", "    import time; time.sleep(2)\n")
    with serving(world):
        process = start(world, "0")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(number)
        process.communicate()
        assert process.returncode == 143
        start(world, "00").communicate()
    assert not (world / "out" / "0.json").exists()


def test_a_sigterm_is_not_lost_before_a_fork_has_its_own_handlers(world: Path) -> None:
    slow = "    Path('forked').write_text('')\n    import time; time.sleep(3)\n"
    edit(world, "    request = part.request\n", f"    request = part.request\n{slow}")
    with serving(world):
        process = start(world, "wait")
        eventually((world / "forked").exists)
        process.terminate()
        process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert not (world / "out" / "wait.json").exists()


@SIGNALS
def test_a_signal_to_the_driver_reaches_the_fork(world: Path, number: signal.Signals) -> None:
    driver = drive(world, {"sft": "wait"})
    everybody = members(world, driver)
    driver.send_signal(number)
    driver.wait()
    asked = (world / "asked").read_text()
    # A SIGTERM goes to the whole session, and is passed on besides; a second Ctrl-C would kill.
    assert asked in ({"15 ", "15 15 "} if number == signal.SIGTERM else {"2 "})
    assert (world / "saved").exists()
    assert not any(map(is_alive, everybody.values()))


@pytest.mark.parametrize("killed", MEMBERS)
def test_whoever_is_killed_nobody_is_left(world: Path, killed: str) -> None:
    kill_one(world, drive(world, {"sft": "wait"}), killed)
