"""What `tasks/__init__.py` sees to before a stage imports anything."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
DVC = """
import subprocess, sys, time
stage = "import tasks; print('importing', flush=True); import time; time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", stage], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_stage_that_still_imports_ends_with_its_dvc():
    dvc = subprocess.Popen(
        [sys.executable, "-c", DVC],
        env={**os.environ, "DVC_STAGE": "base"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert dvc.stdout is not None
    stage = int(dvc.stdout.readline())
    try:
        dvc.kill()
        dvc.wait()
        until = time.monotonic() + 20
        while alive(stage) and time.monotonic() < until:
            time.sleep(0.02)
        assert not alive(stage)
    finally:
        dvc.stdout.close()
        if alive(stage):
            os.kill(stage, signal.SIGKILL)


SETTINGS = """
import gc, os, tasks
importing = gc.isenabled()
from tasks.running.runner import run_stage
run_stage("report", print, arguments=[])
print(importing, gc.isenabled(), os.environ.get("GOMP_SPINCOUNT"), os.environ.get("MKL_CBWR"))
"""
"""A stage that ends at once, for want of params.yaml."""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DVC_STAGE": "report"}, "False True 5000 AUTO,STRICT"),
        (
            {"DVC_STAGE": "report", "GOMP_SPINCOUNT": "7", "MKL_CBWR": "COMPATIBLE"},
            "False True 7 COMPATIBLE",
        ),
        ({}, "True True None None"),
    ],
)
def test_a_stage_of_dvc_imports_without_garbage_search_and_sets_how_libraries_compute(
    tmp_path: Path, environment: dict[str, str], expected: str
):
    settings = ("GOMP_SPINCOUNT", "MKL_CBWR")
    inherited = {name: value for name, value in os.environ.items() if name not in settings}
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def alive(pid: int) -> bool:
    """Whether it is there and not a zombie that nobody has asked for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
