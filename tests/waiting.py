"""Waiting for what comes about soon, however busy the machine is."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 900


def eventually(found: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What `found` gives as soon as it counts as true."""
    deadline = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < deadline, f"waited for {seconds:.0f} s in vain; last: {what!r}"
        time.sleep(0.05)
    return what


def written(path: Path) -> str:
    """The text of a file as soon as it has any."""
    text: str = eventually(lambda: path.exists() and path.read_text())
    return text


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie has only not been buried."""
    return _state(pid) not in ("", "Z")


def is_waiting(pid: int) -> bool:
    """Whether the main thread of the process sleeps: it waits for something to happen."""
    return _state(pid) == "S"


def waits_for_a_lock(pid: int) -> bool:
    """Whether the process waits for a file that another one holds (`flock`)."""
    return bool(re.search(rf"-> FLOCK .* {pid} ", Path("/proc/locks").read_text()))


def signals(pid: int, kind: str) -> set[int]:
    """The signals that a process catches (`SigCgt`), or that are still to come (`ShdPnd`)."""
    found = re.search(rf"^{kind}:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return {number for number in range(1, 65) if int(found[1], 16) >> (number - 1) & 1}


def _state(pid: int) -> str:
    """As the kernel abbreviates it; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
