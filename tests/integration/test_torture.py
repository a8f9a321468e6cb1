"""A part of `make torture`: a trial or two of what a kill, a flipped bit, a lost parent can do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.torture import rows as torture_rows
from benchmarks.torture.__main__ import keep
from benchmarks.torture.page import WHAT_HAPPENS

ROOT = Path(__file__).resolve().parents[2]
ROWS = ("commit_kills", "damaged_checkpoints", "damaged_models", "killed_parents", "tracking_away")
SLOW_ROWS = (
    "random_kills",
    "full_disks",
    "double_starts",
    "injected_non_finite",
    "canaries",
    "tracking_back",
    "prefect_away",
    "killed_orchestrators",
    "identical_locks",
)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def torture(folder: Path, *rows: str) -> dict[str, tuple[int, int]]:
    """Row -> trials that held, and all."""
    command = [sys.executable, "-m", "benchmarks.torture", "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--share", "0.05", *rows],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    results = json.loads((folder / "results.json").read_text())
    return {name: (result["held"], result["tried"]) for name, result in results.items()}


def test_a_page_of_all_rows_is_not_replaced_by_one_of_some(tmp_path: Path) -> None:
    """A new checkout has the page, and no results: one row there had emptied all others."""
    page, file = tmp_path / "reliability.md", tmp_path / "results.json"
    page.write_text("of every row")
    held = {"tried": 1, "held": 1, "remark": "", "failures": [], "seed": 0}
    results = {name: held | {"commit": "c", "machine": "m"} for name in torture_rows.ROWS}
    some = {name: results[name] for name in ROWS}

    lacking = keep(some, file, page, always=False)

    assert {*lacking, *ROWS} == {*results}
    assert json.loads(file.read_text()) == some
    assert page.read_text() == "of every row"
    assert keep(results, file, page, always=False) == []
    assert "not run" not in page.read_text()
    assert keep(some, file, page, always=True) == lacking
    assert page.read_text().count("not run") == len(lacking)


@pytest.mark.long
def test_a_row_that_does_not_exist_is_refused_before_anything_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.torture", "kills"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'kills' is none of random_kills, commit_kills," in done.stderr


@pytest.mark.long
@LINUX
def test_kills_damage_and_lost_parents_change_no_byte(tmp_path: Path) -> None:
    assert torture(tmp_path, *ROWS) == {
        # One of each training stage.
        "commit_kills": (4, 4),
        "damaged_checkpoints": (1, 1),
        "damaged_models": (1, 1),
        "killed_parents": (2, 2),
        "tracking_away": (1, 1),
    }
    page = (tmp_path / "reliability.md").read_text()
    assert re.search(r"\| 4 \| 4 \| 40 \| `.*` \| HF Trainer: 0 of 4 resume", page)
    assert "not run" in page
    assert "Did not hold" not in page


@LINUX
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_the_other_rows_hold_too(tmp_path: Path) -> None:
    assert torture(tmp_path, *SLOW_ROWS) == {
        "random_kills": (4, 4),
        "full_disks": (1, 1),
        "double_starts": (2, 2),
        "injected_non_finite": (1, 1),
        "canaries": (10, 10),
        "tracking_back": (1, 1),
        "prefect_away": (1, 1),
        "killed_orchestrators": (1, 1),
        "identical_locks": (3, 3),
    }


def test_the_page_says_of_failures_what_its_writer_says() -> None:
    """Neither may be edited alone: the next `make torture` writes the page anew."""
    page = (ROOT / "docs/reliability.md").read_text()
    assert WHAT_HAPPENS in page
