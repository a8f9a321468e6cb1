"""Several gloo processes for a test, forked off this one, so that none imports torch anew."""

import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from rlhf import distributed

SECONDS = 300
"""Time for all of them; one that hangs is killed."""


def run_together(work: Callable[[], Any], processes: int = 2) -> list[Any]:
    """What the function returns in each process; the exception where it raises one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    started = []
    for rank in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(work, rank, processes, port, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    found = [_received(ours) for _, ours in started]
    for process, _ in started:
        process.join(SECONDS)
        process.kill()
    return found


def _received(ours: Connection) -> Any:
    try:
        return pickle.loads(ours.recv_bytes()) if ours.poll(SECONDS) else None
    except EOFError:  # It ended without a word.
        return None


def _run(work: Callable[[], Any], rank: int, processes: int, port: int, theirs: Connection) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(processes))
    # OpenMP's threads do not survive a fork; whoever needs them would wait for ever.
    torch.set_num_threads(1)
    distributed.join(cuda=False)
    try:
        found = work()
    except Exception as error:
        found = error
    theirs.send_bytes(pickle.dumps(found))  # Not `send`: torch would share tensors' memory.
    distributed.leave()
