"""A part of `make torture`: a trial or two of what a kill, a flipped bit, a lost parent can do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = ("commit_kills", "damaged_checkpoints", "damaged_models", "killed_parents")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_kills_damage_and_lost_parents_change_no_byte(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.torture", "--folder", str(tmp_path)]
    done = subprocess.run(
        [*command, "--share", "0.05", *ROWS],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    assert {name: result["held"] for name, result in results.items()} == {
        # One of each training stage.
        "commit_kills": 4,
        "damaged_checkpoints": 1,
        "damaged_models": 1,
        "killed_parents": 2,
    }
    page = (tmp_path / "reliability.md").read_text()
    assert "| 4 | 4 | 40 | HF Trainer: 0 of 4 resume" in page
    assert "not run" in page
