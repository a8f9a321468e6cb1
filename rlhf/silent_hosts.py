"""Hosts that fall silent: one that loses power or its network does not say that it is gone.

A process that dies has its connections closed by its kernel, and the others hear of it at once. A
host that cannot be reached closes nothing, so whoever waits for it would wait for ever. On request
the kernel asks the other end whether it is there, and closes a connection that has had no answer.
"""

import contextlib
import os
import socket
import stat
import sys
from pathlib import Path

SECONDS = 20
"""From the last answer to the end of the connection."""

_ASK_AFTER = 5
"""Seconds without traffic; later a question a second."""


def end_connections_to_silent_hosts() -> None:
    """Let this process's connections to other hosts end SECONDS after the last answer (Linux)."""
    if sys.platform != "linux":
        return
    for descriptor in Path("/proc/self/fd").iterdir():
        number = int(descriptor.name)
        with contextlib.suppress(OSError):  # Closed meanwhile, or it leads nowhere yet.
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                if _leads_elsewhere(connection):
                    _end_in_silence(connection)


def _leads_elsewhere(connection: socket.socket) -> bool:
    """Within a host a process can be stopped for long, and its death is always heard of."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if connection.type != socket.SOCK_STREAM:
        return False
    return bool(connection.getpeername()[0] != connection.getsockname()[0])


def _end_in_silence(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ASK_AFTER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    # Bounds both: questions without an answer, and what was sent and not acknowledged.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SECONDS * 1000)
