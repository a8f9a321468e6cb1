"""A stage ends with the DVC that started it, also while it still imports."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


def alive(pid: int) -> bool:
    """Whether it is there and not a zombie that nobody has asked for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
