"""What make does before it delegates: Python, the environment, and nothing twice."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with what the setup needs."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # A make that runs these tests would pass on its options.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    return subprocess.run(
        ["make", *arguments], cwd=root, env=kept, capture_output=True, text=True, check=False
    )


def ready(root: Path) -> None:
    """As the setup leaves it."""
    (root / ".venv").mkdir()
    (root / ".venv/ready").touch()


@pytest.mark.parametrize("target", ["repro", "test", "flow"])
def test_a_missing_python_is_one_sentence(root: Path, target: str):
    done = make(root, target, "PYTHON=python3.11-of-nowhere")

    first, *rest = done.stderr.splitlines()
    assert done.returncode == 2
    assert first == (
        "RLHF Rounds needs Python 3.11; 'python3.11-of-nowhere' was not found. "
        f"Install it, or name it: make {target} PYTHON=/path/to/python3.11"
    )
    assert [line.partition(":")[0] for line in rest] == ["make"]
    assert not (root / ".venv").exists()


def test_a_wrong_python_is_one_sentence(root: Path):
    old = root / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.1 && exit\nexit 1\n')
    old.chmod(0o755)

    done = make(root, "repro", f"PYTHON={old}")

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"RLHF Rounds needs Python 3.11; '{old}' is Python 3.9.1."
    assert not (root / ".venv").exists()


def test_a_second_call_sets_nothing_up(root: Path):
    ready(root)

    done = make(root, "--dry-run", "repro")

    assert done.stdout.splitlines() == ["python -m tasks.repro "]


def test_other_versions_are_installed(root: Path):
    ready(root)
    os.utime(root / "constraints.txt", (2**32, 2**32))

    done = make(root, "--dry-run", "repro")

    assert "pip install" in done.stdout


def test_continuous_integration_runs_the_checks_and_the_tests():
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    steps = [line for line in lines if line.startswith("make")]
    assert steps == ["make check", "make test", "make test-long", "make verify STAGES=2"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
