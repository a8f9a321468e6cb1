"""A workspace with a fork server and stages that only say what they are."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from tasks.workspace.processes import children
from tests.waiting import PATIENCE_SECONDS, eventually, is_alive, is_waiting, signals

REPOSITORY = Path(__file__).parents[2]
ADDRESS = f"rlhf-test-{os.getpid()}"
STAGE = """\
import json, os, signal, sys, time
loaded = "torch" in sys.modules
links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
opened = [os.readlink(link) for link in links if os.path.exists(link)]
from pathlib import Path
from tasks.running import signals
wanted = sys.argv[1]
about = {
    "torch": loaded, "open": opened, "argv": sys.argv[1:],
    "parent": os.getppid(), "pid": os.getpid(),
    "environment": dict(os.environ), "value": getattr(signals, "VALUE", None), "name": __name__,
    "ignores": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
}
def asked(number, frame):
    with Path("asked").open("a") as file:
        file.write(f"{number} ")
    while Path("slow").exists():
        time.sleep(0.05)
    time.sleep(0.3)  # a checkpoint
    Path("saved").touch()
    sys.exit(7)
signal.signal(signal.SIGTERM, asked)
if not about["ignores"]:
    signal.signal(signal.SIGINT, asked)
Path("out").mkdir(exist_ok=True)
draft = Path("out", "draft")
draft.write_text(json.dumps(about))
draft.rename(Path("out", f"{wanted}.json"))
if wanted == "echo":
    sys.stdout.write(sys.stdin.read().upper())
    sys.stderr.write("to stderr")
if wanted.startswith("-"):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), -int(wanted))
if wanted == "words":
    sys.exit("these words")
if wanted == "error":
    raise ValueError("an error")
if wanted == "atexit":
    import atexit, threading
    atexit.register(print, "at exit")
    threading.Timer(0.3, print, ["a thread"]).start()
while wanted == "wait":
    time.sleep(0.05)
if wanted.isdigit():
    sys.exit(int(wanted))
"""
SERVER = "tasks/running/fork_server.py"
AFTER_LIBRARIES = "\nGPUS = ()\nLIBRARIES = ()\n"
"""Put at the end of the server's constants: it is there at once, on any machine."""

DRIVER = """\
import os, sys
from pathlib import Path
from tasks.workspace.dvc_process import DvcProcess, dvc_environment
environment = dvc_environment(os.environ)
sys.exit(DvcProcess(sys.argv[1:], folder=Path.cwd(), environment=environment).wait())
"""


@pytest.fixture(name="world")
def world_fixture(tmp_path: Path) -> Path:
    """A workspace in which `sft` and `label` only say what they are."""
    for name in ("tasks", "rlhf", "preferences"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__py*"))
    for name in ("sft", "label"):
        (tmp_path / "tasks" / f"{name}.py").write_text(STAGE)
    (tmp_path / "params.yaml").write_text("run: {bits: portable}\n")
    edit(tmp_path, "\n_OF_SHELLS =", f"{AFTER_LIBRARIES}_OF_SHELLS =")
    return tmp_path


def edit(world: Path, old: str, new: str) -> None:
    """Another server, in this workspace alone."""
    path = world / SERVER
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def environment(**more: str) -> dict[str, str]:
    held_back = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**held_back, "DVC_STAGE": "sft", "RLHF_FORK_SERVER": ADDRESS, **more}


@contextmanager
def serving(world: Path, *, apart: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """A fork server without libraries, whose `stdin` is the life of DVC.

    `apart`: in a session of its own, as that of a flow run.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{ADDRESS}")
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", "tasks.running.fork_server", str(listener.fileno())],
            cwd=world,
            env=environment(),
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=apart,
        )
    try:
        yield server
    finally:
        server.kill()
        server.communicate()


def start(world: Path, wanted: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tasks.sft", wanted],
        cwd=world,
        env=environment(**more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(world: Path, wanted: str) -> Any:
    return json.loads((world / "out" / f"{wanted}.json").read_text())


def started(world: Path) -> Any:
    """What a stage that waits says of itself."""
    eventually((world / "out" / "wait.json").exists)
    return said(world, "wait")


def waits_for_a_fork(process: "subprocess.Popen[str]") -> bool:
    """Whether it has asked the server for one."""
    return signal.SIGTERM in signals(process.pid, "SigCgt") and is_waiting(process.pid)


def waits_for_its_fork(process: "subprocess.Popen[str]") -> bool:
    """Whether it has got one, and waits for its end."""
    links = Path(f"/proc/{process.pid}/fd").iterdir()
    return any("pidfd" in str(link.readlink()) for link in links) and is_waiting(process.pid)


def define(world: Path, **commands: str) -> None:
    """A DVC pipeline: name of each stage -> module of `tasks`, and what it is asked for."""
    if not (world / ".dvc").exists():
        Repo.init(str(world), no_scm=True)
    lines = []
    for name, command in commands.items():
        out = f"out/{command.split()[1]}.json"
        lines.append(f"  {name}: {{cmd: exec python -m tasks.{command}, outs: [{out}]}}\n")
    (world / "dvc.yaml").write_text(f"stages:\n{''.join(lines)}")


def drive(world: Path, stages: dict[str, str], *options: str) -> "subprocess.Popen[bytes]":
    """`dvc repro` as our drivers run it; each stage is asked for something."""
    define(world, **{name: f"{name} {wanted}" for name, wanted in stages.items()})
    own = {"DVC_SITE_CACHE_DIR": str(world / "site"), "SHELL": "/bin/sh"}
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, "repro", "--quiet", *options],
        cwd=world,
        env={**os.environ, **own},
        start_new_session=True,
    )


MEMBERS = ("driver", "dvc", "asker", "server", "fork")


def members(world: Path, driver: "subprocess.Popen[Any]") -> dict[str, int]:
    """The processes of a run whose stage waits."""
    stage = started(world)
    dvc = int(stage["environment"]["RLHF_STARTED_BY"])
    (asker,) = set(children(dvc)) - {stage["parent"]}
    pids = (driver.pid, dvc, asker, stage["parent"], stage["pid"])
    return dict(zip(MEMBERS, pids, strict=True))


def kill_one(world: Path, driver: "subprocess.Popen[Any]", killed: str) -> None:
    """Nobody is left, and who is not killed itself has had time for a checkpoint."""
    everybody = members(world, driver)
    os.kill(everybody[killed], signal.SIGKILL)
    driver.wait(PATIENCE_SECONDS)
    eventually(lambda: not any(map(is_alive, everybody.values())))
    # What is killed itself, or with the process that DVC knows, has no time for one.
    assert (world / "saved").exists() == (killed in ("driver", "dvc", "server"))
