"""Children that are heard to their last word and leave nobody behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flows import processes
from tests.waiting import PATIENCE_SECONDS, eventually, is_alive

HERE = Path.cwd()


def start(script: str, output: int = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-u", "-c", textwrap.dedent(script)]
    return processes.start(command, cwd=HERE, env=os.environ, output=output)


def wait_until_dead(pid: int) -> None:
    eventually(lambda: not is_alive(pid))


def test_lines_come_whole_however_they_were_written():
    child = start(
        """
        import sys, time
        for part in ("first\\nsec", "ond\\n", "without an end"):
            sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.05)
        """
    )
    assert list(processes.lines(child)) == [b"first", b"second", b"without an end"]
    assert child.wait() == 0


def test_stderr_is_heard_as_well():
    child = start("import sys; sys.stderr.write('trouble\\n'); sys.exit(3)")
    assert list(processes.lines(child)) == [b"trouble"]
    assert child.wait() == 3


FORKING = """
import json, os, signal, sys, time
from pathlib import Path
from flows import processes
from flows.forking import forks
from flows.graph import PlannedStage
from tasks.workspace.dvc_process import DvcProcess
from tasks.workspace.processes import children
class Cancelled(BaseException): ...
def cancel(*_): raise Cancelled
def start():
    processes.start([sys.executable, "-c", "import time; time.sleep(900)"],
                    cwd=Path.cwd(), env=os.environ, output=1)
def dvc():
    DvcProcess(["version"], folder=Path.cwd(), environment=os.environ)
def fork_server():
    of_two = [PlannedStage(name="sft", round=None, gpu=True, ends_round=False, stale=True)] * 2
    with forks(of_two, Path.cwd(), "e1"):
        sys.exit("it was not heard")
number = int(sys.argv[2])
signal.signal(number, cancel)
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), number))
try:
    globals()[sys.argv[1]]()
except Cancelled:
    print(json.dumps(children(os.getpid())), flush=True)
    os._exit(7)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "starter", ["start", "dvc", pytest.param("fork_server", marks=pytest.mark.long)]
)
def test_a_signal_during_a_fork_is_heard_and_ends_the_child(number: int, starter: str):
    """Python ignores what a handler raises in the hooks of a fork."""
    command = [sys.executable, "-c", FORKING, starter, str(int(number))]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE_SECONDS)
    assert done.returncode == 7
    left = json.loads(done.stdout.splitlines()[-1])
    assert starter == "dvc" or left == []
    for pid in left:
        wait_until_dead(pid)  # DVC ends with us.


def test_what_a_dead_child_leaves_behind_is_ended(tmp_path):
    note = tmp_path / "pid"
    orphan = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(900)"
    child = start(
        f"""
        import os, subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", {orphan!r}])
        while not (os.path.exists({str(note)!r}) and os.path.getsize({str(note)!r})):
            time.sleep(0.01)
        os._exit(1)
        """
    )
    assert list(processes.lines(child)) == []
    wait_until_dead(int(note.read_text()))


def test_a_daemon_that_keeps_the_pipe_does_not_hold_us():
    child = start(
        """
        import subprocess, sys
        daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"],
                                  start_new_session=True)
        print(daemon.pid)
        """
    )
    (pid,) = map(int, processes.lines(child))
    assert is_alive(pid), "it was waited for"
    os.kill(pid, signal.SIGKILL)


def test_end_reaches_grandchildren_and_lets_them_finish(tmp_path):
    saver = tmp_path / "saver.py"
    saver.write_text(
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.5)\n"
        "    os.write(1, b'saved\\n')  # print may be at work when it comes.\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    child = start(f"import subprocess, sys; subprocess.run([sys.executable, {str(saver)!r}])")
    said = processes.lines(child)
    assert next(said) == b"ready"
    processes.end(child, grace_seconds=300)
    assert list(said) == [b"saved"]


def test_end_kills_what_does_not_listen():
    child = start(
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(900)
        """
    )
    assert next(processes.lines(child)) == b"deaf"
    processes.end(child, grace_seconds=0.3)
    assert child.returncode == -signal.SIGKILL


def test_end_of_a_child_that_has_ended_is_nothing():
    child = start("pass", output=subprocess.DEVNULL)
    child.wait()
    processes.end(child, grace_seconds=0.1)
    assert child.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_when_we_are_killed(number):
    script = f"""
    import os, subprocess, sys
    sys.path.insert(0, {str(Path(processes.__file__).parents[1])!r})
    from pathlib import Path
    from flows import processes
    child = processes.start([sys.executable, "-c", "import time; time.sleep(900)"],
                            cwd=Path.cwd(), env=os.environ, output=subprocess.DEVNULL)
    print(child.pid, flush=True)
    child.wait()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.send_signal(number)
    wait_until_dead(child)
