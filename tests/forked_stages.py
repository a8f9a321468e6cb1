"""Stages as several processes that are forked off the test, each within a second or two.

They are what a launcher starts, ranks of `tasks.running.ranks`, but for the import of torch. What
only an agent does (`tasks.running.agent`) takes real processes: `tests.several`.
"""

import logging
import os
import runpy
import shlex
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from ruamel.yaml import YAML

import tasks
from tests.stage_world import environment

SECONDS = 300
"""Time for all of them; one that hangs is killed."""

Prepare = Callable[[int], None]
"""Called in each process, with its rank, before the stage."""


def commands(root: Path) -> list[list[str]]:
    """Module and arguments of every stage of dvc.yaml, in the file's order, for its one round."""
    (key,) = YAML(typ="safe").load(root / "params.yaml")["rounds"]
    stages = YAML(typ="safe").load(root / "dvc.yaml")["stages"].values()
    texts = [(stage.get("do") or stage)["cmd"].replace("${key}", key) for stage in stages]
    return [shlex.split(text.removeprefix("exec python -m ")) for text in texts]


def run(
    root: Path, command: list[str], processes: int = 1, prepare: Prepare = lambda rank: None
) -> list[int]:
    """The exit code of a stage's command in each process; of one alone where there is one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    children = []
    for rank in range(processes):
        several = launched | {"RANK": str(rank), "WORLD_SIZE": str(processes)}
        if (child := os.fork()) == 0:
            _become(root, command, several if processes > 1 else {}, partial(prepare, rank))
        children.append(child)
    return [_ended(child) for child in children]


def _become(
    root: Path, command: list[str], launched: dict[str, str], prepare: Callable[[], None]
) -> None:
    """Be the stage's process, to its end."""
    code = 1
    try:
        os.chdir(root)
        chosen = environment(root.parent, **launched, RLHF_EXECUTION="tiny")
        os.environ.clear()
        os.environ.update(chosen)
        logging.getLogger().handlers.clear()  # Pytest's; the stage has its own.
        # The modules are those of the tests; the files of the world are as old as the process.
        tasks.STARTED_NS = time.time_ns()
        # OpenMP's threads do not survive a fork; whoever needs them would wait for ever.
        torch.set_num_threads(1)
        prepare()
        sys.argv = command
        runpy.run_module(command[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
