"""What `tasks/__init__.py` sees to before a stage imports anything."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf.bits import PORTABLE, obstacle
from tests.waiting import eventually, is_alive

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
        eventually(lambda: not is_alive(stage))
    finally:
        dvc.stdout.close()
        if is_alive(stage):
            os.kill(stage, signal.SIGKILL)


IMPORTS = "import tasks, time; print('importing', flush=True); time.sleep(60)"
BEGINS = """
import tasks, time
from tasks.running.signals import interruptible
@interruptible
def stage(name):
    try:
        print('running', flush=True)
        time.sleep(60)
    finally:
        print('cleared up', flush=True)
raise SystemExit(stage('sft'))
"""
"""A stage that begins, and has something to clear up."""


@pytest.mark.parametrize(
    ("code", "environment", "expected"),
    [
        (IMPORTS, {"DVC_STAGE": "sft"}, ("", "sft: interrupted; run it again to resume\n")),
        (IMPORTS, {"DVC_STAGE": "sft", "RANK": "1"}, ("", "")),
        (IMPORTS, {"RANK": "0"}, ("", "")),
        (
            BEGINS,
            {"DVC_STAGE": "sft"},
            ("cleared up\n", "sft: interrupted; run it again to resume\n"),
        ),
        (BEGINS, {"RANK": "0"}, ("cleared up\n", "")),
    ],
)
def test_a_ctrl_c_ends_a_stage_that_imports_or_begins_in_one_line(
    tmp_path: Path, code: str, environment: dict[str, str], expected: tuple[str, str]
):
    stage = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert stage.stdout is not None
    assert stage.stdout.readline()
    stage.send_signal(signal.SIGINT)

    assert (stage.communicate(), stage.returncode) == (expected, 143)


def test_a_ctrl_c_that_was_ignored_stays_so_while_a_stage_imports(tmp_path: Path):
    """As nohup has it."""
    code = (
        "import signal; signal.signal(2, signal.SIG_IGN); import tasks; print(signal.getsignal(2))"
    )

    assert said(code, tmp_path, {**os.environ, "DVC_STAGE": "sft"}) == "1"


SETTINGS = """
import gc, os, tasks
importing = gc.isenabled()
from tasks.running.runner import run_stage
run_stage("report", print, arguments=[])
print(importing, gc.isenabled(), os.environ.get("GOMP_SPINCOUNT"))
"""
"""A stage that ends at once, for want of params.yaml."""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DVC_STAGE": "report"}, "False True 5000"),
        ({"DVC_STAGE": "report", "GOMP_SPINCOUNT": "7"}, "False True 7"),
        ({}, "True True 5000"),
    ],
)
def test_a_stage_of_dvc_imports_without_garbage_search_and_all_say_how_threads_wait(
    tmp_path: Path, environment: dict[str, str], expected: str
):
    inherited = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    assert said(SETTINGS, tmp_path, inherited | environment) == expected


BITS = """
import os, sys, tasks
print(*(os.environ.get(name) for name in ("MKL_CBWR", "ATEN_CPU_CAPABILITY")))
print(sorted({"torch", "numpy"} & set(sys.modules)))
"""

PINNED = "AVX2,STRICT avx2\n[]"


@pytest.mark.skipif(obstacle() is not None, reason=f"this machine has {obstacle()}")
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("run: {seed: 0}", PINNED),
        ("run: {bits: portable}", PINNED),
        ("run: {bits: native}", "AUTO,STRICT None\n[]"),
        ("run: {bits: fast}", PINNED),  # Refused by the stage, when it reads all of the file.
        ("run: [", PINNED),
        ("[]", PINNED),
        (None, PINNED),
    ],
)
@pytest.mark.parametrize("by", [{"DVC_STAGE": "ppo@r1"}, {}])
def test_the_bits_that_params_yaml_asks_for_are_chosen_before_torch_is_there(
    tmp_path: Path, params: str | None, expected: str, by: dict[str, str]
):
    if params is not None:
        (tmp_path / "params.yaml").write_text(params, encoding="utf-8")
    others = {name: value for name, value in os.environ.items() if name not in PORTABLE}

    assert said(BITS, tmp_path, others | by) == expected


def said(code: str, folder: Path, environment: dict[str, str]) -> str:
    """What code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
