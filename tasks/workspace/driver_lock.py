"""One driver at a time in a workspace: a flow run, `make repro`, or a bare `dvc repro`.

Two would give DVC the same stage twice, and it refuses the second in the middle of a run. The
kernel keeps the lock, so a dead process cannot leave it behind; the file's text only informs people
and identifies flow runs that did not finish. A bare `dvc repro` does not take our lock: it is
found among the processes.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from tasks.workspace.dvc_rwlock import repro_processes
from tasks.workspace.held import take

LOCK_FILE = Path(".work") / "driver.lock"
STALE_EXIT_CODE = 6
"""Exit code of a driver whose inputs changed during the run: the stages ran on older versions."""
BUSY_EXIT_CODE = 7
"""Exit code of a driver that finds another one running; it has started nothing."""
DYING_SECONDS = 2.0
"""A `dvc` whose driver was killed takes a moment to follow it."""
LOOK_SECONDS = 0.2
"""Whoever only looks whether a driver is here holds the lock for a moment."""
ADVICE = (
    "Wait for it, or end it (Ctrl-C where it was started, or Cancel in Prefect's UI); two at once "
    "need two workspaces (`make repro VARIANT=...` makes one)"
)


class WorkspaceBusyError(Exception):
    """Another driver is running here; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Who brings a workspace up to date."""

    name: str
    """As people know it: `make repro`, `flow run kl 0.10, 2 rounds, 6cb38ae`."""
    flow_run: str | None = None
    """Prefect's id, None where it is no flow run."""
    pid: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")


@contextmanager
def sole_use(root: Path, driver: Driver) -> Iterator[list[str]]:
    """Hold the workspace; yields the ids of flow runs that may have died in here unnoticed.

    They are a flow run's to report; any other driver leaves them to the next flow run. One that a
    signal ends is among them: whoever sent it may have ended Prefect's server, too.

    Raises:
        WorkspaceBusyError: another driver is running here.
    """
    with _locked(root) as lock:
        _refuse_bare_dvc(root)
        before, dead = _read(lock)
        if before is not None and before.flow_run is not None:
            dead = [*dead, before.flow_run]
        # One that is tried again is the same run, and lives.
        dead = [flow_run for flow_run in dead if flow_run != driver.flow_run]
        _write(lock, driver, dead)
        left = [] if driver.flow_run else dead
        try:
            yield dead
        except BaseException as error:
            if driver.flow_run and not isinstance(error, Exception):
                left = [*dead, driver.flow_run]
            raise
        finally:
            _write(lock, None, left)


def refuse_if_busy(root: Path) -> None:
    """Check that no driver is running here, before anything is started for another one.

    Raises:
        WorkspaceBusyError: one is.
    """
    with _locked(root):
        pass
    # With the lock let go of: this takes seconds beside a dying `dvc`.
    _refuse_bare_dvc(root)


def died_in(root: Path) -> list[str]:
    """Flow runs that may have died here unnoticed, with no successor; none while a driver runs."""
    with suppress(WorkspaceBusyError):
        _refuse_bare_dvc(root)
        with _locked(root) as lock:
            last, dead = _read(lock)
        return [*dead, last.flow_run] if last is not None and last.flow_run else dead
    return []


@contextmanager
def _locked(root: Path) -> Iterator[IO[str]]:
    path = root / LOCK_FILE
    path.parent.mkdir(exist_ok=True)
    if (lock := _take_soon(path)) is None:
        with path.open(encoding="utf-8") as other:
            driver, _ = _read(other)
        name = (
            f"{driver.name} works here since {driver.since} (process {driver.pid})"
            if driver
            else "another run has just begun here"
        )
        raise WorkspaceBusyError(f"{root}: {name}. {ADVICE}")
    with lock:
        yield lock


def _take_soon(path: Path) -> IO[str] | None:
    deadline = time.monotonic() + LOOK_SECONDS
    while (lock := take(path)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return lock


def _refuse_bare_dvc(root: Path) -> None:
    deadline = time.monotonic() + DYING_SECONDS
    while found := repro_processes(root):
        if time.monotonic() > deadline:
            raise WorkspaceBusyError(
                f"{root}: `dvc repro` works here (process {found[0]}). {ADVICE}"
            )
        time.sleep(0.05)


def _read(lock: IO[str]) -> tuple[Driver | None, list[str]]:
    """Who holds the lock, or died with it; and the flow runs that died before."""
    try:
        note = json.loads(lock.read())
        return Driver(**note["driver"]) if note["driver"] else None, list(note["dead"])
    except (ValueError, TypeError, KeyError):  # Empty, or cut off by a crash of the machine.
        return None, []


def _write(lock: IO[str], driver: Driver | None, dead: list[str]) -> None:
    lock.truncate(0)
    lock.write(json.dumps({"driver": asdict(driver) if driver else None, "dead": dead}))
    lock.flush()
