"""Stages of `stage_world` as several processes: their start, what they say, what is left."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests import stage_world
from tests.waiting import eventually, is_alive, signals

SFT = "sft"
DEADLINE_SECONDS = 300
"""For what takes at most ten on a machine with nothing else to do."""
TORCHS_SECONDS = 25
"""Less than torch's launcher leaves who hears nothing, and three times what ours does."""


def start(root: Path, stage: str = SFT, **environment: str) -> subprocess.Popen[str]:
    section, _, key = stage.partition("@")
    outside = {"PYTHONPATH": str(stage_world.ROOT), "RLHF_EXECUTION": "tiny", **environment}
    return subprocess.Popen(
        [sys.executable, "-m", f"tasks.{section}", *(["--round", key] if key else [])],
        cwd=root,
        env=stage_world.environment(root, **outside),
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(root: Path, stage: str = SFT, **environment: str) -> tuple[int, str]:
    process = start(root, stage, **environment)
    _, said = process.communicate()
    return process.returncode, said


def processes_in(root: Path) -> list[int]:
    """Those that work in the folder, zombies aside."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink() == root:
                found.append(int(link.parent.name))
        except OSError:
            continue
    return found


def ranks(root: Path) -> dict[str, int]:
    """RANK -> process, of those in the folder."""
    found: dict[str, int] = {}
    for pid in processes_in(root):
        settings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found |= {s[5:].decode(): pid for s in settings if s.startswith(b"RANK=")}
    return found


def wait_for_checkpoint(root: Path, process: subprocess.Popen[str]) -> None:
    while not stage_world.checkpoint_paths(root, SFT):
        assert process.poll() is None
        time.sleep(0.02)


def time_to_hear(pid: int) -> float:
    """Seconds from the signal that a stopped process cannot hear to its end.

    How soon somebody sends it depends on the machine; how long it may take then does not.
    """
    eventually(lambda: signal.SIGUSR2 in signals(pid, "ShdPnd"))
    asked = time.monotonic()
    eventually(lambda: not is_alive(pid))
    return time.monotonic() - asked


def losses(root: Path) -> list[float]:
    lines = (root / "results/sft/history.csv").read_text().splitlines()
    return [float(line.split(",")[1]) for line in lines[1:]]


def outcome(root: Path, stage: str = SFT) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / ".work" / stage / "outcome.json").read_text())
    return found


def curves(root: Path) -> dict[str, list[list[float]]]:
    """All that the stages' history.csv hold, by their paths below the folder."""
    found = {}
    for path in sorted(root.glob("results/**/history.csv")):
        lines = path.read_text().splitlines()[1:]
        rows = [[float(number or 0) for number in line.split(",")] for line in lines]
        found[path.relative_to(root).as_posix()] = rows
    return found
