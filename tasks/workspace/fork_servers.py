"""Start a workspace's fork server (tasks/running/fork_server.py), of which its stages are forks.

It imports nothing of ours: the workspace may be of another revision, and DVC's process
(`quick_dvc`), which loads this file by its path, has no package of ours to import.
"""

import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path


def start_fork_server(
    workspace: Path, environment: Mapping[str, str], *, own_session: bool
) -> tuple[str, "subprocess.Popen[bytes]"] | None:
    """Start it; None where this system or this workspace has none.

    Call it in the main thread: the server hears of the death of the thread that started it.

    Args:
        workspace: the stages' folder.
        environment: that of the stages; where theirs differs, they run alone.
        own_session: whether a signal to the caller's session should leave the server and its forks
            alone; otherwise its forks are meant, too.

    Returns:
        The address, and the process, which ends once its standard input and the last fork have.
    """
    module = workspace / "tasks" / "running" / "fork_server.py"
    if not (module.exists() and sys.platform == "linux"):
        return None
    address = f"rlhf-{secrets.token_hex(16)}"
    # Where sockets of this kind are not allowed, or processes are too many, stages are slower.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", "tasks.running.fork_server", str(listener.fileno())],
            cwd=workspace,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            # A Ctrl-C is for DVC and the stage.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
            start_new_session=own_session,
        )
        return address, server
    return None
