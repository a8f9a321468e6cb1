"""What DVC and Prefect cost by themselves, beside the work of the stages.

    make orchestration                                     # python -m benchmarks.orchestration
    python -m benchmarks.orchestration --folder CHECKOUT   # one that is up to date, as it is

Three rounds with tiny params are run as a whole, once by `dvc repro` and once by the flow, each in
a new checkout; then each is run again, with nothing to do. A stage has started when its own process
has read its params and holds the machine (`.work/STAGE/running.json`); it is ended then, and its
outputs come from the cache. Seconds on the clock, and of processors, of a command with all that it
starts; medians.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.arguments import positive
from flows import processes
from tasks.reporting.summary import cpu_name
from tests.stage_world import copy_tiny_repository, environment

ROUNDS = 3
PLAIN = (sys.executable, "-m", "dvc", "repro", "--quiet")
FLOW = (sys.executable, "-m", "flows.local")
STAGES = ("label@r2", "sft", "ppo@r2")
"""One that judges texts, and two that train."""


@dataclass(frozen=True)
class Cost:
    """Of one command."""

    wall: float
    processors: float


@dataclass(frozen=True)
class Row:
    """What was measured how often, in the table."""

    what: str
    costs: Sequence[Cost]
    limit: str = ""

    def __str__(self) -> str:
        wall = median(cost.wall for cost in self.costs)
        processors = median(cost.processors for cost in self.costs)
        return f"| {self.what} | {len(self.costs)} | {wall:.1f} | {processors:.1f} | {self.limit} |"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.orchestration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, help="a checkout that is up to date")
    parser.add_argument(
        "--repeat", type=positive, default=5, metavar="N", help="default: %(default)s"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        spare = Path(temporary)
        rows = [] if args.folder else whole_runs(spare)
        root = args.folder.resolve() if args.folder else spare / "plain"
        rows += nothing_to_do(root, spare, args.repeat)
        rows += starts(root, spare, args.repeat)
    print(f"\n{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}\n")
    print("| | times | seconds | processor seconds | at most |\n|---|--:|--:|--:|--:|")
    for row in rows:
        print(row)
    return 0


def whole_runs(spare: Path) -> list[Row]:
    """All stages, in two new checkouts."""
    plain, flow = check_out(spare / "plain"), check_out(spare / "flow")
    return [
        Row("`dvc repro`, all stages", [run(PLAIN, plain, spare)]),
        Row("the flow, all stages", [run(FLOW, flow, spare)]),
    ]


def starts(root: Path, spare: Path, repeat: int) -> list[Row]:
    """From `dvc repro --single-item` until the stage works."""
    return [
        Row(f"start of {stage}", [start(stage, root, spare) for _ in range(repeat)], "3")
        for stage in STAGES
    ]


def nothing_to_do(root: Path, spare: Path, repeat: int) -> list[Row]:
    """The same commands where all is up to date; the first of each fills caches."""
    plain = [run(PLAIN, root, spare) for _ in range(repeat + 1)][1:]
    flow = [run(FLOW, root, spare) for _ in range(repeat + 1)][1:]
    over = [
        Cost(ours.wall - theirs.wall, ours.processors - theirs.processors)
        for ours, theirs in zip(flow, plain, strict=True)
    ]
    return [
        Row("`dvc repro`, nothing to do", plain, "2"),
        Row("the flow, nothing to do", flow),
        Row("the flow over `dvc repro`, nothing to do", over, "15"),
    ]


def check_out(root: Path) -> Path:
    """This repository with tiny params, committed."""
    copy_tiny_repository(root, rounds=ROUNDS)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "tiny"]):
        names = ["-c", "user.name=cost", "-c", "user.email=cost@localhost"]
        subprocess.run(["git", *names, *command], cwd=root, check=True)
    return root


def run(command: Sequence[str], root: Path, spare: Path) -> Cost:
    """Run a command to its end."""
    return measured(lambda: finish(launch(command, root, spare)))


def start(stage: str, root: Path, spare: Path) -> Cost:
    """Run a stage until it begins to work, end it, and put its outputs back."""
    running = root / ".work" / stage / "running.json"
    running.unlink(missing_ok=True)
    began = time.monotonic()
    process = launch((*PLAIN, "--single-item", "--force", stage), root, spare)
    while not running.exists():
        if process.poll() is not None:
            raise SystemExit(f"{stage} ended before it began to work; see {spare / 'log.txt'}")
        time.sleep(0.005)
    wall = time.monotonic() - began
    own = json.loads(running.read_text(encoding="utf-8"))["pid"]
    cost = Cost(wall, processor_seconds(process.pid) + processor_seconds(own))
    processes.end(process, grace_seconds=20.0)
    finish(launch((sys.executable, "-m", "dvc", "checkout", "--quiet", "--force"), root, spare))
    return cost


def processor_seconds(pid: int) -> float:
    """Of a process that runs."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def launch(command: Sequence[str], root: Path, spare: Path) -> "subprocess.Popen[bytes]":
    with (spare / "log.txt").open("ab") as log:
        return processes.start(command, cwd=root, env=environment(spare), output=log)


def finish(process: "subprocess.Popen[bytes]") -> None:
    if process.wait() != 0:
        raise SystemExit(f"{process.args!r} ended with {process.returncode}")


def measured(action: Callable[[], None]) -> Cost:
    """Seconds on the clock, and of processors in what has ended meanwhile."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.monotonic() - began, processors)


if __name__ == "__main__":
    sys.exit(main())
