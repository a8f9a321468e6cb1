"""Where the processes of a stage meet: MASTER_ADDR and MASTER_PORT.

torch ends in a traceback where the port is taken, and waits for a host whose name nobody knows for
as long as it would wait for one that is busy, which here is days.
"""

import errno
import os
import socket
import time

from tasks.params.loading import ParamsError

RESOLVING_SECONDS = 60.0
"""A name may be new: that of a Kubernetes pod is known some seconds after the pod has started, and
whoever asked before hears of it half a minute later."""

_LARGEST_PORT = 65535


def require_place() -> None:
    """Check the place that this process's launcher has named.

    Raises:
        ParamsError: there is none, its name does not resolve, or its port is taken here.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not address:
        raise ParamsError("MASTER_ADDR: expected the host of the first process, found none")
    if not port.isdecimal() or not 0 < int(port) <= _LARGEST_PORT:
        raise ParamsError(f"MASTER_PORT: expected a port, 1 to {_LARGEST_PORT}, found {port!r}")
    # torch's launcher listens there itself, and says so.
    listens = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    require_resolved(address)
    if listens and os.environ["RANK"] == "0":
        require_free(int(port))


def require_resolved(address: str) -> None:
    """Wait until the name of a host is known.

    Raises:
        ParamsError: it is not after `RESOLVING_SECONDS`.
    """
    deadline = time.monotonic() + RESOLVING_SECONDS
    while True:
        try:
            socket.getaddrinfo(address, None)
        except (OSError, UnicodeError) as error:
            if time.monotonic() > deadline:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ParamsError(
                    f"MASTER_ADDR: the host {address!r}, where the stage's processes are to meet, "
                    f"is not known on {socket.gethostname()}: {reason}"
                ) from None
            time.sleep(1.0)
        else:
            return


def require_free(port: int) -> None:
    """Check that this process could listen at a port.

    Raises:
        ParamsError: another one does, or the system refuses.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As torch does: connections that have ended are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "another program listens there" if taken else error.strerror
            raise ParamsError(
                f"MASTER_PORT: the stage's processes cannot meet at port {port} of "
                f"{socket.gethostname()}: {reason}"
            ) from None
