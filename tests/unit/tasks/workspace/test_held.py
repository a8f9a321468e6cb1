"""Locks on files: one holder, many who look, none that outlives its process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tasks.workspace.held import held, is_held, take

REPOSITORY = Path(__file__).parents[4]
HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tasks.workspace.held import held
with held(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_holds_and_others_see_it_until_it_lets_go(tmp_path):
    path = tmp_path / "lock"
    assert not is_held(path)
    assert not path.exists(), "looking made a file"
    with held(path):
        assert is_held(path)
        assert take(path) is None
    assert not is_held(path)
    lock = take(path)
    assert lock is not None
    assert is_held(path)
    lock.close()
    assert not is_held(path)


def test_who_lets_go_frees_it_although_a_child_that_was_forked_meanwhile_lives(tmp_path):
    """As the renderer of a chat template does, which lives as long as its stage."""
    with held(tmp_path / "lock"):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
    try:
        assert not is_held(tmp_path / "lock")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_two_who_look_do_not_take_each_other_for_a_holder(tmp_path):
    (tmp_path / "lock").touch()
    look = take(tmp_path / "lock", shared=True)
    assert look is not None
    with look:
        assert not is_held(tmp_path / "lock")


def test_the_text_of_a_lock_stays_and_is_read_from_its_start(tmp_path):
    (tmp_path / "lock").write_text("who\n")
    lock = take(tmp_path / "lock")
    assert lock is not None
    with lock:
        assert lock.read() == "who\n"


def test_a_killed_holder_lets_go_and_who_waits_gets_the_lock(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(REPOSITORY), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_held(path)
        process.send_signal(signal.SIGKILL)
        with held(path):
            pass
