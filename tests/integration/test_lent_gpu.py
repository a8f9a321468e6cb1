"""The tests that need a GPU start on a machine that has torch and next to nothing of the rest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stage_world import ROOT

ABSENT = ("dvc", "great_expectations", "mlflow", "prefect", "psycopg", "sqlalchemy", "starlette")
"""What orchestrates, tracks, versions and labels; a GPU that is lent for minutes is without it."""

COLLECT = f"""
import sys
sys.modules |= dict.fromkeys({ABSENT})
import pytest
sys.exit(pytest.main(["-m", "gpu", "--collect-only", *sys.argv[1:]]))
"""


@pytest.mark.long
def test_the_tests_of_a_gpu_are_collected_without_what_orchestrates() -> None:
    files = sorted(map(str, (ROOT / "tests").rglob("test_gpu_*.py")))
    assert len(files) >= 5
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, *files],
        cwd=ROOT,
        env=os.environ | {"RLHF_TEST_BITS": "native"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_that_fails_keeps_no_other_from_running(tmp_path: Path) -> None:
    """What a GPU would have said of the others is lost with it."""
    python, ran = tmp_path / "python", tmp_path / "ran"
    python.write_text(f'#!/bin/sh\necho "$*" >> {ran}\nexit 1\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "test-gpu", "READY=", f"PATH={tmp_path}{os.pathsep}{os.environ['PATH']}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    files = {line.split()[-1] for line in ran.read_text().splitlines()}
    assert len(files) >= 5
    assert all(Path(file).name.startswith("test_gpu_") for file in files)
