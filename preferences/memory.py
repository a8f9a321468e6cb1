"""A limit on the memory that reading data may take."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")


@contextmanager
def memory_capped(gib: float) -> Iterator[None]:
    """Lets this process take `gib` GiB more than it has; beyond that, MemoryError is raised.

    Data that are made to take more are thus refused before they crowd out others. Systems without
    such a limit ignore it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _taken() + int(gib * 1024**3)
    with suppress(OSError, ValueError):
        limits = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _taken() -> int:
    """Bytes of data that this process has, as far as the system tells."""
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
