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
    waits_for_a_fork,
    waits_for_its_fork,
    world_fixture,  # noqa: F401
)
from tests.waiting import PATIENCE_SECONDS, eventually, is_alive, signals, written

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
        (world / "slow").touch()
        process = start(world, "wait")
        started(world)
        process.send_signal(signal.SIGINT)
        assert written(world / "asked") == "2 "
        process.send_signal(signal.SIGINT)
        eventually(lambda: (world / "asked").read_text() == "2 2 ")
        (world / "slow").unlink()
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 7


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
        assert server.wait(PATIENCE_SECONDS) == 0


def test_a_server_that_is_killed_while_others_wait_leaves_these_to_themselves(world: Path) -> None:
    edit(world, "    gc.freeze()\n", "    import time; time.sleep(600)\n")
    with serving(world) as server:
        process = start(world, "0")
        eventually(lambda: waits_for_a_fork(process))
        server.kill()
        process.communicate()
    assert process.returncode == 0
    assert said(world, "0")["pid"] == process.pid


@SIGNALS
def test_while_the_server_imports_a_signal_ends_who_waits_for_it(
    world: Path, number: signal.Signals
) -> None:
    imports = "    import time\n    while not Path('imported').exists(): time.sleep(0.05)\n"
    edit(world, "    gc.freeze()\n", imports)
    with serving(world):
        process = start(world, "0")
        eventually(lambda: waits_for_a_fork(process))
        process.send_signal(number)
        assert process.wait() == 143
        (world / "imported").touch()
        process.communicate()  # Until then its streams are on their way to the server.
        start(world, "00").communicate()
    assert not (world / "out" / "0.json").exists()


def test_a_sigterm_is_not_lost_before_a_fork_has_its_own_handlers(world: Path) -> None:
    slow = "    Path('forked').write_text(str(os.getpid()))\n    import time\n"
    slow += "    while not Path('pending').exists(): time.sleep(0.05)\n"
    edit(world, "    request = part.request\n", f"    request = part.request\n{slow}")
    with serving(world):
        process = start(world, "wait")
        fork = int(written(world / "forked"))
        eventually(lambda: waits_for_its_fork(process))
        process.terminate()
        eventually(lambda: signal.SIGTERM in signals(fork, "ShdPnd"))
        (world / "pending").touch()
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
