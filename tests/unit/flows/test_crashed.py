"""How the process of an ordered run ends when its worker is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import eventually, is_alive, written

WORKING = """
import os, subprocess, sys, threading, time
for _ in range(30):
    threading.Thread(target=time.sleep, args=[900], daemon=True).start()
process = subprocess.Popen([sys.executable, "-c", os.environ["RUN"], sys.argv[1]],
    env={**os.environ, "RLHF_WORKER": str(os.getpid())},
    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
process.wait()
"""
RUN = """
import os, signal, sys, time
from pathlib import Path
from flows.crashed import end_with_the_worker
folder = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (folder / "heard").open("a").write("x"))
end_with_the_worker()
(folder / "pid").write_text(str(os.getpid()))
while not (folder / "heard").exists():
    time.sleep(0.01)
for stream in (sys.stdout, sys.stderr):
    print("Crash detected!", file=stream, flush=True)
time.sleep(1)
(folder / "ended").write_text((folder / "heard").read_text())
"""


def test_a_run_whose_worker_is_killed_hears_it_once_and_can_still_speak(tmp_path: Path):
    command = [sys.executable, "-c", WORKING, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "RUN": RUN}) as worker:
        run = int(written(tmp_path / "pid"))
        worker.send_signal(signal.SIGKILL)
        eventually(lambda: not is_alive(run))
    assert (tmp_path / "ended").read_text() == "x"
