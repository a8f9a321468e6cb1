"""Progress for people: a bar in a terminal, plain lines elsewhere."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.running import progress
from tasks.running.progress import Progress, say_left_out, track, track_batches

ROOT = Path(__file__).resolve().parents[4]


def test_elsewhere_one_line_at_the_end_has_count_metrics_rate_and_time_left(capsys):
    shown = Progress("sft", 4, "steps")
    for loss in (4.0, 3.0, 2.0, -1.5):
        shown.step(loss=loss)
    shown.close()

    (line,) = capsys.readouterr().err.splitlines()

    assert re.fullmatch(r"sft +4/4 steps  loss -1\.5  \S+ steps/s, 0 s left", line)


def test_a_step_that_finishes_nothing_repeats_no_line(capsys):
    """As at the end of batches, all of which this process has computed."""
    shown = Progress("sample@r1", 2, "responses")
    for count in (2, 0, 0):
        shown.step(count)
    shown.close()

    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test advances."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_last_line_comes_once_although_passes_without_news_follow(capsys):
    shown = Progress("sample@r1", 3, "responses")
    for new in (3, 0, 0):
        shown.step(new)

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_batches_are_counted_by_what_they_hold_and_others_work_at_the_end(capsys, clock):
    """One of two processes computes 5 of 9 responses, in batches of 2 that take 10 s."""
    shown, passed = Progress("sample@r1", 9, "responses"), []
    for batch in track_batches([[1, 2], [3, 4], [5]], shown, 9):
        passed.append(batch)
        clock.now += 10
    assert passed == [[1, 2], [3, 4], [5]]
    counts = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["2/9", "4/9", "5/9", "9/9"]


def test_a_long_stage_shows_a_line_every_ten_seconds(capsys, clock):
    shown = Progress("sft", 100, "steps")
    for _ in range(3):
        clock.now += 9
        shown.step()  # Too early for a line.
        clock.now += 1
        shown.step()

    lines = capsys.readouterr().err.splitlines()

    assert [line.split()[1] for line in lines] == ["2/100", "4/100", "6/100"]


def test_rate_and_time_left_follow_from_the_steps_of_this_run_alone(capsys, clock):
    shown = Progress("ppo@r1", 22, "iterations", done=10)
    clock.now += 20
    shown.step(5)

    # Five steps in twenty seconds; seven are left.
    assert "15/22 iterations    0.25 iterations/s, 28 s left" in capsys.readouterr().err


def test_tracking_passes_every_item_on_and_counts_it(capsys):
    assert list(track("abc", "prepare", 3, "rows")) == ["a", "b", "c"]
    assert "3/3 rows" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")
def test_in_a_terminal_a_bar_shows_share_rate_and_remaining_time():
    code = (
        "import time\n"
        "from tasks.running.progress import Progress\n"
        "shown = Progress('sft', 4, 'steps')\n"
        "for _ in range(4):\n"
        "    time.sleep(0.15)\n"
        "    shown.step(loss=1.5)\n"
        "shown.close()\n"
    )
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 100))
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # Linux says so when the other side is closed.
        pass
    process.wait()
    states = said.decode().split("\r")

    assert any(re.search(r"sft: +50%.*2/4 \[.*<.*steps.*loss \+1\.5", state) for state in states)
    assert any("100%" in state and "4/4" in state for state in states)


def test_rows_that_are_left_out_are_a_line_and_above_a_tenth_a_warning(
    capsys: pytest.CaptureFixture[str],
):
    say_left_out(0, 50, "prompts", "more than 96 tokens")
    assert capsys.readouterr().err == ""
    say_left_out(5, 50, "prompts", "more than 96 tokens")
    assert capsys.readouterr().err == ("5 of 50 prompts left out (10 %): more than 96 tokens\n")
    say_left_out(30, 50, "prompts", "more than 96 tokens")
    assert capsys.readouterr().err == (
        "WARNING: 30 of 50 prompts left out (60 %): more than 96 tokens\n"
    )
