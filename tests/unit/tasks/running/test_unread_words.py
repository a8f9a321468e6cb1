"""A stage goes on, and ends as it was asked to, where nobody can read any more what it says.

As at `make repro 2>&1 | tee log`: a Ctrl-C ends `tee`, too, and first.
"""

import signal

from tests.unit.tasks.running.conftest import PATIENCE_SECONDS, Workplace
from tests.waiting import eventually

STEP = """\
with stage.signals.patient():
    Path('started').touch()
    while not stage.signals.asked: time.sleep(0.01)
    Path('checkpoint').touch()
    raise KeyboardInterrupt
"""
LINES = """\
from tasks.running.progress import Progress
Path('started').touch()
while not Path('unread').exists(): time.sleep(0.01)
Progress("probe", 1, "steps").step()
"""


def start_unread(place: Workplace, body: str):
    process = place.start(body)
    eventually((place.root / "started").exists)
    process.stderr.close()
    return process


def test_a_ctrl_c_leaves_a_checkpoint_and_a_record(place: Workplace):
    process = start_unread(place, STEP)

    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_SECONDS) == 143
    assert (place.root / "checkpoint").exists()
    assert place.outcome()["status"] == "interrupted"
    assert place.finish()["status"] == "KILLED"


def test_a_line_of_progress_ends_no_training(place: Workplace):
    process = start_unread(place, LINES)

    (place.root / "unread").touch()

    assert process.wait(PATIENCE_SECONDS) == 0
    assert place.output() == ["half.txt", "whole.txt"]


def test_an_error_is_recorded(place: Workplace):
    process = start_unread(place, LINES + "raise AssertionError('broken')")

    (place.root / "unread").touch()

    assert process.wait(PATIENCE_SECONDS) == 1
    assert place.outcome()["message"] == "AssertionError: broken"
