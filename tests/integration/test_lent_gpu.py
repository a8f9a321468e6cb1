"""The tests that need a GPU start on a machine that has torch and next to nothing of the rest."""

import os
import subprocess
import sys

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
