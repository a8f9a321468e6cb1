"""How a stage ended, for those who cannot see its exit code: DVC turns every code into 255."""

import contextlib
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.workspace.execution import current_execution
from tasks.workspace.files import DamagedNoteError, now_ms, read_json, write_json

Status = Literal["done", "bad_input", "stopped", "blocked", "waiting", "failed", "interrupted"]

EXIT_CODES: dict[Status, int] = {
    "done": 0,
    "failed": 1,
    "bad_input": 2,
    "stopped": 3,
    "blocked": 4,
    "waiting": 5,
    "interrupted": 143,
}


class StageEnd(Exception):
    """Ends a stage early with a status and a message for people."""

    def __init__(self, status: Status, message: str):
        """`message` is shown as it is."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Outcome:
    """The content of `.work/<stage>/outcome.json`."""

    stage: str
    status: Status
    code: int
    message: str
    seconds: float
    peak_rss_bytes: int
    ended_ms: int
    execution: str
    checkpoints: int
    """Written by this run."""
    checkpoint_seconds: float
    """Time that training paused for them."""
    environment: Mapping[str, Any]
    """What it ran on: Python, packages, machine. In no output, since none depends on it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """In which execution a stage ran, and on what."""

    execution: str
    environment: Mapping[str, Any]


@dataclass(slots=True)
class Cost:
    """What checkpoints have cost a run so far."""

    written: int = 0
    seconds: float = 0.0


def write_outcome(
    root: Path,
    stage: str,
    status: Status,
    message: str,
    *,
    started: float,
    setting: Setting,
    cost: Cost,
) -> Outcome:
    """Record the end of a stage that began at `started` (`time.monotonic`)."""
    outcome = Outcome(
        stage=stage,
        status=status,
        code=EXIT_CODES[status],
        message=message,
        seconds=round(time.monotonic() - started, 3),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        ended_ms=now_ms(),
        execution=setting.execution,
        checkpoints=cost.written,
        checkpoint_seconds=round(cost.seconds, 3),
        environment=dict(setting.environment),
    )
    folder = root / ".work" / stage
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "outcome.json", asdict(outcome))
    return outcome


def write_refusal(root: Path, stage: str, message: str, *, started: float) -> None:
    """Record bad input that was found before the stage's body began."""
    setting = Setting(current_execution(root), {})
    write_outcome(root, stage, "bad_input", message, started=started, setting=setting, cost=Cost())


def require_sound_outcomes(root: Path) -> None:
    """See that all outcomes can be read, before a run: at its end it reads those of all stages.

    Raises:
        DamagedNoteError: one cannot.
    """
    for path in sorted((root / ".work").glob("*/outcome.json")):
        read_json(path)


def seconds_of_stages(root: Path, execution: str) -> float:
    """What the stages that have ended in an execution took, each in its last run."""
    total = 0.0
    for path in (root / ".work").glob("*/outcome.json"):
        with contextlib.suppress(DamagedNoteError):  # Of another stage: `make doctor` names it.
            found = read_json(path) or {}
            total += float(found["seconds"]) if found.get("execution") == execution else 0.0
    return total


def process_age() -> float:
    """Seconds since this process started, imports included."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")
