"""A launcher of one host of several: who asks it to end leaves its processes their checkpoint."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS, eventually

SAVES = """
import os, signal, sys, time
def save(number, _):
    time.sleep(3)
    open("saved-" + os.environ["RANK"], "w").write(signal.Signals(number).name)
    sys.exit()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
open("ready-" + os.environ["RANK"], "w").close()
while True:
    time.sleep(0.05)
"""
"""What takes three times as long as a process has that does not hear of the death of another."""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_processes_that_are_asked_to_end_have_the_time_that_they_need(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place = ["--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1"]
    place += ["--master-port", port, "--nproc-per-node", "2"]
    agent = subprocess.Popen(
        [sys.executable, "-m", "tasks.running.agent", *place, "-m", "saves"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{Path(__file__).resolve().parents[4]}{os.pathsep}{tmp_path}",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1",
        },
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        eventually(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        agent.send_signal(number)
        code = agent.wait(PATIENCE_SECONDS)
    finally:
        agent.kill()
        agent.wait()

    saved = sorted(path.name for path in tmp_path.glob("saved-*"))
    assert (saved, code) == (["saved-0", "saved-1"], 0)
