"""Trials in which any one process of a driver's run is killed, not always the one above all."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from benchmarks.torture.checkout import check_out, fingerprint, processes
from benchmarks.torture.orchestrators import ORCHESTRATORS, SHORT, Orchestra, copy, run_again
from benchmarks.torture.world import Count, World

COMMAND = ORCHESTRATORS["make repro"]
SERVER = "tasks.running.fork_server"
ROLES = ("driver", "DVC", "stage's process", "fork server", "fork")


def killed_members(world: World, trials: int) -> Count:
    """Kill -9 one process of the driver's run at a random moment, then the same command again."""
    count, longest, roles = Count(), 0.0, Counter[str]()
    folder = world.root.parent / "members"
    prepared = check_out(folder / "prepared", stages=SHORT)
    orchestra = Orchestra(copy(prepared, folder / "root"), COMMAND)
    started = time.monotonic()
    assert orchestra.start().wait() == 0, orchestra.said()
    seconds, whole = time.monotonic() - started, fingerprint(orchestra.root)
    orchestra.said()
    for number in range(trials):
        orchestra = Orchestra(copy(prepared, folder / "root"), COMMAND)
        first = orchestra.start()
        role = ROLES[number % len(ROLES)]
        time.sleep(world.chance.uniform(0, seconds))
        killed = _kill(first, orchestra.root, role)
        roles[role if killed else "too late"] += 1
        first.wait()
        left = processes(orchestra.root)
        wrong, lived = run_again(orchestra, left, whole)
        longest = max(longest, lived)
        wrong[f"left: {processes(orchestra.root)}"] = bool(processes(orchestra.root))
        count.add(f"{number}: {role}", wrong)
    shutil.rmtree(folder)
    kinds = ", ".join(f"{many} {role}" for role, many in sorted(roles.items()))
    count.remark = f"{kinds}; what was left below a killed driver ended after {longest:.1f} s"
    return count


def _kill(driver: "subprocess.Popen[bytes]", root: Path, role: str) -> bool:
    """Kill the first process of this role that there is from now on; false if there was none."""
    while driver.poll() is None:
        for pid in sorted(processes(root)):
            if _role(pid) == role:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return True
    return False


def _role(pid: int) -> str | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        above = Path(f"/proc/{parent}/cmdline").read_text()
    except OSError:  # It ended meanwhile.
        return None
    if SERVER in words:
        return "fork" if SERVER in above else "fork server"
    if "tasks.repro" in words:
        return "driver"
    if any(word.endswith("quick_dvc.py") for word in words):
        return "DVC"
    return "stage's process" if any(word.startswith("tasks.") for word in words) else None
