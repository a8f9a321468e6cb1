"""Waiting for what comes about soon, however busy the machine is."""

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
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
