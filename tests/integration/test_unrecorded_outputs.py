"""A training that has finished, and DVC that dies before it has recorded the outputs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.tiny_checkout import World, unrun_fixture  # noqa: F401

pytestmark = pytest.mark.long

DIES_AS_IT_STORES = """
import os, sys
def heard(event, found):
    stored = event != "open" and any(".dvc/cache/files/md5" in str(each) for each in found)
    if stored and os.path.exists(".work/base/outcome.json"):
        os.kill(os.getpid(), 9)
if "dvc" in sys.orig_argv:
    sys.addaudithook(heard)
"""
"""As a full disk or an impatient person would end it."""


def test_a_finished_training_resumes_where_dvc_could_not_record_it(
    unrun: World, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", "base"]
    unrun.dvc("repro", "prepare")
    (tmp_path / "sitecustomize.py").write_text(DIES_AS_IT_STORES)
    dies = unrun.environment | {"PYTHONPATH": str(tmp_path), "RLHF_CHECKPOINT_STEPS": "3"}
    killed = subprocess.run(command, cwd=unrun.root, env=dies, check=False)
    assert killed.returncode == -9
    assert unrun.json(".work/base/outcome.json")["status"] == "done"
    checkpoints = list(unrun.root.glob(".work/base/*/step-*"))
    assert checkpoints

    said = unrun.run(*command)
    newest = max(int(path.name.removeprefix("step-")) for path in checkpoints)
    assert f"base resumes from its checkpoint at step {newest}" in said

    # They go when somebody next runs a stage and finds that DVC has recorded the outputs.
    unrun.dvc("repro", "--single-item", "sft")
    assert not list(unrun.root.glob(".work/base/*/step-*"))
    assert not os.path.lexists(unrun.root / ".work/base/made_from.json")
