"""How a run of the driver ends by a signal or beside another that works in the same place."""

import json
import os
import signal
import subprocess
import sys
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
