"""How a run of the driver ends by a signal or beside another that works in the same place."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.workspace.driver_lock import Driver, sole_use
from tests.integration.repro_world import (  # noqa: F401
    PATIENCE_SECONDS,
    drive,
    environment,
    root_fixture,
    start_driver,
    template_fixture,
)
from tests.waiting import is_alive, written

pytestmark = pytest.mark.long
SAID = "baseline was interrupted; run again to resume from its checkpoint"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_stage_and_nobody_is_left_behind(
    root: Path, number: signal.Signals
) -> None:
    (root / "wanted").write_text("hang")
    driver = start_driver(root)
    pid = int(written(root / ".work" / "baseline" / "pid"))
    driver.send_signal(number)
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == 143
    assert err.splitlines()[-1] == SAID
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("numbers", "kept", "code"),
    [
        ([signal.SIGTERM, signal.SIGTERM], True, 143),
        ([signal.SIGINT, signal.SIGINT], False, 130),
        ([signal.SIGTERM, signal.SIGINT], False, 143),
    ],
)
def test_a_second_ctrl_c_kills_and_a_second_sigterm_is_the_same_request(
    root: Path, numbers: list[signal.Signals], kept: bool, code: int
) -> None:
    (root / "wanted").write_text("slow" if kept else "slower")
    driver = start_driver(root)
    pid = int(written(root / ".work" / "baseline" / "pid"))
    for number in numbers:
        driver.send_signal(number)
        time.sleep(0.5)  # Sent together they would be one.
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == code
    assert (err.splitlines()[-1] == SAID) == kept
    assert not is_alive(pid)


def test_a_job_in_the_background_of_a_script_is_not_told_of_a_ctrl_c(root: Path) -> None:
    """A shell has such a job ignore it, and so do its stages."""
    (root / "wanted").write_text("hang")
    command = f"trap '' INT; exec {sys.executable} -m tasks.repro"
    driver = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=root, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = int(written(root / ".work" / "baseline" / "pid"))
    driver.send_signal(signal.SIGINT)
    time.sleep(2)  # Four times what the stage takes to end.
    assert is_alive(pid)
    driver.send_signal(signal.SIGTERM)
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert (driver.returncode, err.splitlines()[-1]) == (143, SAID)


def test_a_ctrl_c_while_dvc_looks_what_is_to_do_is_one_line(root: Path) -> None:
    """It asks `dvc status`, in a process of its own."""
    (root / "sitecustomize.py").write_text(STATUS_WAITS)
    environment_of_both = environment() | {"LOOKS": str(root / "looks")}
    environment_of_both["PYTHONPATH"] = f"{root}{os.pathsep}{environment_of_both['PYTHONPATH']}"
    driver = subprocess.Popen(
        [sys.executable, "-m", "tasks.repro"],
        cwd=root, env=environment_of_both, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    written(root / "looks")
    os.killpg(driver.pid, signal.SIGINT)
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert (driver.returncode, err) == (130, "Interrupted.\n")


STATUS_WAITS = """
import os, sys, time
if "status" in sys.argv or "status" in getattr(sys, "orig_argv", []):
    with open(os.environ["LOOKS"], "w") as looks:
        looks.write("here")
    time.sleep(600)
"""

SHORT_GRACE = (
    "import sys, tasks.workspace.dvc_process as process, tasks.repro as repro; "
    "process.GRACE_SECONDS = 1.0; sys.exit(repro.main([]))"
)


@pytest.mark.parametrize(("number", "kept"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_only_a_ctrl_c_waits_for_a_long_step(
    root: Path, number: signal.Signals, kept: bool
) -> None:
    (root / "wanted").write_text("slow" if kept else "slower")
    driver = subprocess.Popen(
        [sys.executable, "-c", SHORT_GRACE],
        cwd=root,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    written(root / ".work" / "baseline" / "pid")
    driver.send_signal(number)
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert (root / ".work" / "baseline" / "outcome.json").exists() == kept
    assert (err.splitlines()[-1] == SAID) == kept
    assert driver.returncode == 143


def test_a_stage_does_not_outlive_a_driver_that_is_killed(root: Path) -> None:
    (root / "wanted").write_text("hang")
    driver = start_driver(root)
    written(root / ".work" / "baseline" / "pid")
    driver.kill()
    driver.communicate(timeout=PATIENCE_SECONDS)  # ends when the last process has closed the pipe
    outcome = json.loads((root / ".work" / "baseline" / "outcome.json").read_text())
    assert outcome["status"] == "interrupted"


@pytest.mark.parametrize("arguments", [(), ("--variant", "no_kl")])
def test_beside_a_running_one_a_second_ends_at_once_with_7(
    root: Path, arguments: tuple[str, ...]
) -> None:
    (root / "wanted").write_text("hang")
    first = start_driver(root, *arguments)
    workspace = root / ".work/variants/no_kl" if arguments else root
    try:
        written(workspace / ".work/baseline/pid")
        (root / "wanted").write_text("success")
        code, out, err = drive(root, *arguments)
    finally:
        first.terminate()
        first.communicate(timeout=PATIENCE_SECONDS)

    assert (code, out) == (7, "")
    name = "make repro VARIANT=no_kl" if arguments else "make repro"
    assert f"`{name}` works here since 20" in err
    assert f"(process {first.pid})" in err
    assert len(err.splitlines()) == 1
    assert (workspace / "wanted").read_text() == ("hang" if arguments else "success")


def test_beside_a_flow_run_it_ends_at_once_with_7(root: Path) -> None:
    with sole_use(root, Driver(name="flow run kl 0.10, 1 round, 6cb38ae", flow_run="5d7e")):
        code, out, err = drive(root)
    assert (code, out) == (7, "")
    assert "flow run kl 0.10, 1 round, 6cb38ae works here since 20" in err


def test_beside_a_bare_dvc_repro_it_ends_with_7(root: Path) -> None:
    (root / "wanted").write_text("hang")
    with subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=root,
        env=environment() | {"RLHF_EXECUTION": "bare", "RLHF_SHIPPER": "driver"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as dvc:
        written(root / ".work/baseline/pid")
        code, out, err = drive(root)
        os.killpg(dvc.pid, signal.SIGTERM)
    assert (code, out) == (7, "")
    assert f"`dvc repro` works here (process {dvc.pid})" in err
