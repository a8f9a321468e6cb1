"""What a stage keeps below `.work/<stage>`: checkpoints, staging folder, outcome, who runs.

<fingerprint>/   checkpoints of one definition of the training (16 hex digits)
staging/         outputs that are being built
outcome.json     how the last run ended
running.json     the running process, or one that died silently
blocked/         what the data gate, or a probe of the reward model, found when it last blocked
stopped/         what the fresh labels said when they last stopped a round before its PPO

`.work/stage.lock` is held by the stage that runs.
"""

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.workspace.files import now_ms, write_json
from tasks.workspace.held import held

log = logging.getLogger(__name__)

RUNNING = "running.json"
BLOCKED = "blocked"
STOPPED = "stopped"
GUARDS = "guards.md"
"""What the probes and the fresh labels found, below either folder and with the results."""


_OF_NO_STAGE = frozenset({
    "executions", "feedback", "linking", "mlflow", "prefect", "production", "promotion", "runs",
    "spool", "stages", "told", "trial", "variants", "verify",
})  # fmt: skip
"""Other folders below `.work`."""


@dataclass(frozen=True, slots=True)
class Running:
    """The process of a stage; a process id alone may be reused by another process."""

    stage: str
    execution: str
    pid: int
    ticks: int
    """Start of the process in clock ticks since the machine booted."""
    boot: str
    since_ms: int = 0
    """When the stage noted this."""

    @property
    def alive(self) -> bool:
        """Whether this process is still running (a zombie is not)."""
        return self.boot == _boot() and self.ticks == _start_ticks(self.pid) is not None


STAGE_LOCK = Path(".work") / "stage.lock"


@contextlib.contextmanager
def alone(stage: str) -> Iterator[None]:
    """Hold the machine: one stage at a time; the kernel lets go of the lock on any death."""
    STAGE_LOCK.parent.mkdir(exist_ok=True)
    started = time.monotonic()
    with held(STAGE_LOCK):
        if (waited := time.monotonic() - started) > 1:
            log.info("%s waited %.0f s for another stage to end", stage, waited)
        yield


def note_running(work: Path, stage: str, execution: str) -> None:
    """Write `running.json` for this process."""
    ticks = _start_ticks(os.getpid()) or 0
    work.mkdir(parents=True, exist_ok=True)
    running = Running(stage, execution, os.getpid(), ticks, _boot(), now_ms())
    write_json(work / RUNNING, asdict(running))


def read_running(root: Path) -> list[Running]:
    """The notes of all stages of a workspace; one that cannot be read is none."""
    found = []
    for path in sorted((root / ".work").glob(f"*/{RUNNING}")):
        try:
            found.append(Running(**json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, TypeError):
            continue
    return found


def idle_stages(root: Path) -> list[Path]:
    """The folders below `.work` of stages that are not running.

    A workspace may be called `staging` or have the 16 hex digits of checkpoints for its name, so
    nothing may be looked for in the folders of workspaces.
    """
    alive = {running.stage for running in read_running(root) if running.alive}
    folders = (path for path in sorted((root / ".work").glob("*")) if path.is_dir())
    return [path for path in folders if path.name not in _OF_NO_STAGE | alive]


def checkpoint_folders(work: Path) -> list[Path]:
    """The folders of checkpoints below `.work/<stage>`, the newest last."""
    folders = [path for path in work.glob("*") if re.fullmatch("[0-9a-f]{16}", path.name)]
    return sorted(folders, key=lambda path: path.stat().st_mtime_ns)


def newest_checkpoint(work: Path) -> Path | None:
    """The last checkpoint that a stage wrote and still keeps, unverified."""
    paths = [path for folder in checkpoint_folders(work) for path in sorted(folder.glob("step-*"))]
    return paths[-1] if paths else None


def _start_ticks(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""
