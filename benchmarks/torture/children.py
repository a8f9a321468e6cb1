"""Stages in forked children: torch is imported once, a trial costs a second or two.

The parent computes nothing, so that it has no threads that a fork would lose.
"""

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests import stage_world


def fork(work: Callable[[], int], log: Path) -> int:
    """Run `work` in a child with its words in `log`; the child's process id."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 70
    try:
        with log.open("a") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait(child: int) -> int:
    """Exit code of a child, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(root: Path, stage: str, **environment: str) -> int:
    """Run a stage in a child to its end."""
    return wait(fork(lambda: stage_world.run(root, stage, **environment), root / "log.txt"))


def run_and_kill(root: Path, stage: str, after: float, **environment: str) -> int:
    """Run a stage and kill it (-9) after so many seconds, unless it has ended."""
    child = fork(lambda: stage_world.run(root, stage, **environment), root / "log.txt")
    deadline = time.monotonic() + after
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return wait(child)


def run_and_kill_in_commit(root: Path, stage: str, event: int, **environment: str) -> int:
    """Run a stage that kills itself (-9) at the n-th flush, rename or removal of a folder."""

    def work() -> int:
        count_events(lambda number: os.kill(os.getpid(), 9) if number == event else None)
        return stage_world.run(root, stage, **environment)

    return wait(fork(work, root / "log.txt"))


def commit_events(root: Path, stage: str, **environment: str) -> int:
    """How many flushes, renames and removals an uninterrupted run makes."""
    counted = root / "events.txt"

    def work() -> int:
        numbers: list[int] = []
        count_events(numbers.append)
        code = stage_world.run(root, stage, **environment)
        counted.write_text(str(len(numbers)))
        return code

    assert wait(fork(work, root / "log.txt")) == 0
    return int(counted.read_text())


def count_events(seen: Callable[[int], object]) -> None:
    """Call `seen` with 1, 2, 3 ... before each fsync, rename and removal of a folder."""
    count = 0

    def noting(function: Callable[..., object]) -> Callable[..., object]:
        def noted(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            seen(count)
            return function(*arguments, **options)

        return noted

    os.fsync = noting(os.fsync)  # type: ignore[assignment]
    Path.replace = noting(Path.replace)  # type: ignore[assignment,method-assign]
    shutil.rmtree = noting(shutil.rmtree)  # type: ignore[assignment]


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def flip_bit(path: Path, chance: random.Random) -> None:
    """One bit of a file, anywhere in it."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
