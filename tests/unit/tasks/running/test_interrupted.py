"""A stage that is interrupted ends with nothing published, and dies with its parent."""

import signal
import socket
import subprocess
import sys

import pytest

from tests.unit.tasks.running.conftest import (
    HANG,
    LINUX,
    PATIENCE_SECONDS,
    Workplace,
)
from tests.waiting import eventually, is_alive, waits_for_a_lock

SLOW_STEP = """\
with stage.signals.patient():
    Path('started').touch()
    time.sleep(10)
    if stage.signals.asked:
        Path('checkpoint').touch()
        raise KeyboardInterrupt
"""


@pytest.mark.long
def test_after_ctrl_c_a_step_may_take_as_long_as_it_needs_and_is_kept(place: Workplace):
    process = place.start(SLOW_STEP)
    eventually((place.root / "started").exists)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 143
    assert (place.root / "checkpoint").exists()
    assert err.splitlines()[0] == (
        "probe will end after the current step and write a checkpoint; a second Ctrl-C ends it at "
        "once and loses its work since the newest checkpoint"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_nothing_published(place: Workplace, number: signal.Signals):
    process = place.start(HANG)
    eventually((place.root / "started").exists)

    process.send_signal(number)
    eventually(lambda: process.poll() is not None)

    assert process.returncode == 143
    assert place.output() == []
    assert (place.outcome()["status"], place.outcome()["code"]) == ("interrupted", 143)
    assert place.finish()["status"] == "KILLED"
    assert "run it again" in process.communicate()[1]


@LINUX
def test_ctrl_c_ends_the_wait_for_another_stage(place: Workplace):
    other = place.start(HANG)
    eventually((place.root / "started").exists)
    process = place.start("", arguments="name='other'")
    eventually(lambda: waits_for_a_lock(process.pid))

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, err) == (143, "other: interrupted; run it again to resume\n")
    assert other.poll() is None


@pytest.mark.long
def test_ctrl_c_ends_the_wait_for_mlflow_and_the_end_is_recorded(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(place, "environment", lambda: ships_to_a_deaf_server(server))
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = place.start(HANG)
        eventually((place.root / "started").exists)
        process.send_signal(signal.SIGINT)
        eventually(lambda: list(place.root.glob(".work/spool/probe/*/finish.json")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 143
    assert "Traceback" not in err
    assert place.outcome()["status"] == "interrupted"


def ships_to_a_deaf_server(server: socket.socket) -> dict[str, str]:
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    return {**Workplace.environment(), "RLHF_SHIPPER": "", "MLFLOW_TRACKING_URI": address}


@LINUX
def test_it_dies_with_its_parent(place: Workplace):
    script = place.script(HANG)
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, sys.argv[1]])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    middle = subprocess.Popen(
        [sys.executable, "-c", parent, str(script)],
        cwd=place.root,
        env=place.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert middle.stdout is not None
    child = int(middle.stdout.readline())
    eventually((place.root / "started").exists)

    middle.kill()
    middle.communicate()
    eventually(lambda: not is_alive(child))

    assert place.outcome()["status"] == "interrupted"
    assert place.output() == []
