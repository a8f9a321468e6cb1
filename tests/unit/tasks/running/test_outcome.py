"""How a stage ended, for those who cannot see its exit code."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

from tasks.running.outcome import EXIT_CODES, Cost, Setting, StageEnd, Status, write_outcome

ROOT = Path(__file__).resolve().parents[4]


def test_every_status_has_an_exit_code_of_its_own():
    assert set(EXIT_CODES) == set(get_args(Status))
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_the_exit_codes_are_the_public_ones():
    public = {"done": 0, "bad_input": 2, "stopped": 3, "blocked": 4, "waiting": 5}

    assert {status: EXIT_CODES[status] for status in public} == public


def test_the_file_says_stage_status_time_and_memory(tmp_path: Path):
    before_ms = time.time_ns() // 1_000_000
    outcome = write_outcome(
        tmp_path, "ppo@r1", "stopped", "the KL exploded",
        started=time.monotonic() - 12.5, setting=Setting("run-7", {"python": "3.11.7"}),
        cost=Cost(3, 0.25),
    )  # fmt: skip

    written = json.loads((tmp_path / ".work" / "ppo@r1" / "outcome.json").read_text())

    assert list(written) == [
        "stage", "status", "code", "message", "seconds", "peak_rss_bytes", "ended_ms", "execution",
        "checkpoints", "checkpoint_seconds", "environment",
    ]  # fmt: skip
    assert {key: written[key] for key in ("stage", "status", "code", "message", "execution")} == {
        "stage": "ppo@r1",
        "status": "stopped",
        "code": 3,
        "message": "the KL exploded",
        "execution": "run-7",
    }
    assert 12.5 <= written["seconds"] < 300
    # A Python process holds more than 5 MB; in units of a kilobyte it would be less than that.
    assert written["peak_rss_bytes"] > 5_000_000
    assert written["environment"] == {"python": "3.11.7"}
    assert (written["checkpoints"], written["checkpoint_seconds"]) == (3, 0.25)
    assert before_ms <= written["ended_ms"] <= time.time_ns() // 1_000_000
    assert written["seconds"] == outcome.seconds


def test_a_stage_end_carries_its_status_and_shows_its_message():
    end = StageEnd("waiting", "12 judgments are missing")

    assert (end.status, str(end)) == ("waiting", "12 judgments are missing")


def test_the_age_of_a_process_counts_from_its_start_imports_included():
    code = (
        "import time; time.sleep(0.6)\n"
        "from tasks.running.outcome import process_age\nprint(process_age())"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lived = time.monotonic() - started

    # The kernel counts in hundredths of a second.
    assert 0.6 <= float(done.stdout) <= lived + 0.02
