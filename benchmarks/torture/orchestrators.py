"""Trials with the whole chain: DVC, or a driver of ours, above the stages."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.checkout import check_out, differing, fingerprint, processes
from benchmarks.torture.kills import ORPHAN_SECONDS
from benchmarks.torture.world import EVERY_STEP, Count, World
from tests.stage_world import environment

ORCHESTRATORS = {
    "dvc repro": ("dvc", "repro"),
    "make repro": ("tasks.repro",),
    "make flow": ("flows.local",),
}
SHORT = ("prepare", "base", "sft")
"""The pipeline in which orchestrators are killed: a data stage and two that train."""

TRAINING = ("base", "sft", "reward@r1", "ppo@r1")


@dataclass
class Orchestra:
    """A checkout with the command that brings it up to date."""

    root: Path
    command: Sequence[str]

    def start(self) -> "subprocess.Popen[bytes]":
        with (self.root.parent / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *self.command],
                cwd=self.root,
                env=environment(self.root.parent, **EVERY_STEP),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> str:
        """What the last command wrote."""
        path = self.root.parent / "log.txt"
        text = path.read_text(errors="replace") if path.exists() else ""
        path.unlink(missing_ok=True)
        return text


def killed_orchestrators(world: World, trials: int) -> Count:
    """Kill -9 the orchestrator alone at a random moment, then at once the same command again."""
    count, longest = Count(), 0.0
    made = dict.fromkeys(ORCHESTRATORS, 0)
    with_stage = 0
    folder = world.root.parent / "orchestrators"
    prepared = check_out(folder / "prepared", stages=SHORT)
    whole, seconds = {}, {}
    for name, command in ORCHESTRATORS.items():
        orchestra = Orchestra(copy(prepared, folder / "root"), command)
        started = time.monotonic()
        assert orchestra.start().wait() == 0, orchestra.said()
        seconds[name] = time.monotonic() - started
        whole[name] = fingerprint(orchestra.root)
        orchestra.said()
    for number in range(trials):
        name = list(ORCHESTRATORS)[number % len(ORCHESTRATORS)]
        made[name] += 1
        orchestra = Orchestra(copy(prepared, folder / "root"), ORCHESTRATORS[name])
        after = world.chance.uniform(0, seconds[name])
        first = orchestra.start()
        left = _kill_alone(first, orchestra.root, after)
        with_stage += bool(left)
        killed = first.returncode == -signal.SIGKILL
        wrong, lived = run_again(orchestra, left, whole[name])
        longest = max(longest, lived)
        when = f"killed after {after:.1f} s" if killed else "had ended"
        count.add(f"{name} {number}, {when}", wrong)
    shutil.rmtree(folder)
    kinds = ", ".join(f"{many} {name}" for name, many in made.items())
    count.remark = (
        f"{kinds}; in {with_stage} trials child processes were running, the last of which ended "
        f"after {longest:.1f} s"
    )
    return count


def run_again(
    orchestra: Orchestra, left: set[int], whole: dict[str, str]
) -> tuple[dict[str, bool], float]:
    """The same command after a kill: what may be wrong, and how long the processes `left` lived."""
    orchestra.said()
    second = orchestra.start()
    lived = _outlived(left)
    code = second.wait()
    said, found = orchestra.said(), fingerprint(orchestra.root)
    wrong = {
        f"exit code {code}: {_last(said)}": code != 0,
        f"other bytes: {differing(found, whole)}": code == 0 and found != whole,
        f"a process lived {lived:.1f} s longer": lived >= ORPHAN_SECONDS,
    }
    return wrong, lived


def identical_locks(world: World, _trials: int) -> Count:
    """All stages of one round, twice uninterrupted and once killed in each training stage."""
    folder = world.root.parent / "locks"
    runs = []
    for name in ("first", "second", "resumed"):
        place = folder / name
        root = check_out(place / "root")
        orchestra = Orchestra(root, ORCHESTRATORS["dvc repro"])
        kills = _kill_while_training(orchestra, world.chance) if name == "resumed" else 0
        code = orchestra.start().wait()
        said = orchestra.said()
        lock = (root / "dvc.lock").read_text() if (root / "dvc.lock").exists() else ""
        runs.append((name, code, said, lock, fingerprint(root)))
    count = Count()
    for name, code, said, lock, found in runs:
        wrong = {
            f"exit code {code}: {_last(said)}": code != 0,
            "another dvc.lock": lock != runs[0][3],
            f"other bytes: {differing(found, runs[0][4])}": found != runs[0][4],
        }
        count.add(name, wrong)
    stages = runs[0][3].count("\n    cmd:")
    shutil.rmtree(folder)
    count.remark = (
        f"{stages} stages and {len(runs[0][4])} files; the last run was killed {kills} times "
        "together with dvc and the stage, each time in a training stage"
    )
    return count


def _kill_while_training(orchestra: Orchestra, chance: random.Random) -> int:
    """Start it once for each training stage, and kill all of it after a checkpoint or two."""
    kills = 0
    for stage in TRAINING:
        process = orchestra.start()
        work = orchestra.root / ".work" / stage
        wanted = chance.randint(1, 2)
        while process.poll() is None and not list(work.glob(f"*/step-{wanted:08d}")):
            time.sleep(0.005)
        kills += process.poll() is None
        for pid in processes(orchestra.root):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    return kills


def _kill_alone(process: "subprocess.Popen[bytes]", root: Path, after: float) -> set[int]:
    """Kill a process after a while; what had worked below it."""
    try:
        process.wait(timeout=after)
    except subprocess.TimeoutExpired:
        process.kill()
        left = processes(root) - {process.pid}
        process.wait()
        return left
    return set()


def _outlived(pids: set[int]) -> float:
    """Seconds until the last of the processes has gone; at most a minute."""
    started = time.monotonic()
    while time.monotonic() - started < 60 and any(
        Path(f"/proc/{pid}/cwd").exists() for pid in pids
    ):
        time.sleep(0.05)
    return time.monotonic() - started


def copy(prepared: Path, root: Path) -> Path:
    """A fresh workspace at the same place, with nothing that an earlier trial has cached."""
    shutil.rmtree(root.parent / "site-cache", ignore_errors=True)
    shutil.rmtree(root, ignore_errors=True)
    return Path(shutil.copytree(prepared, root, symlinks=True))


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["nothing"])[-1][:300]
