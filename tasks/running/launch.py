"""Starts a stage again as several processes (`run.processes`), and ends as their first one does.

This process starts `torch.distributed.run` (`tasks.running.agent`), or what RLHF_LAUNCH names, and
waits; DVC knows only this one. The first of the new ones (`tasks.running.ranks`) holds the lock,
writes and records the outcome; the others compute. A SIGTERM or Ctrl-C here reaches all of them,
and nothing that was started is left when this process ends.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from tasks.params.loading import ParamsError, RunParams
from tasks.running.outcome import EXIT_CODES, StageEnd
from tasks.running.signals import INTERRUPTED
from tasks.workspace.accelerators import several_accelerators
from tasks.workspace.processes import STARTED_BY, adopt_orphans, children, die_with, started_by

SEVERAL = ("sft", "sample", "reward", "ppo", "evaluate", "best_of_n")
"""The sections whose stages can be several processes."""

LAUNCHER = "RLHF_LAUNCH"

SECONDS = 8
"""From the death of one process, or the outcome, to the end of the last."""

PATIENCE_SECONDS = 60.0
"""How long processes that lost their launcher may take for a checkpoint."""


def wants_several(run: RunParams, section_name: str) -> bool:
    """Whether a stage is to be several processes; a server's responses need only one."""
    served = run.generation == "server" and section_name in ("sample", "evaluate")
    return run.processes > 1 and section_name in SEVERAL and not served


def is_launched(run: RunParams) -> bool:
    """Whether this process is one of them: its launcher has given it a number.

    Raises:
        ParamsError: the launcher has started another number of them, or gives none.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return False
    for name in ("RANK", "WORLD_SIZE"):
        if not os.environ[name].isdecimal():
            raise ParamsError(
                f"{name}: expected a number from the launcher, found {os.environ[name]!r}"
            )
    if (found := int(os.environ["WORLD_SIZE"])) != run.processes:
        raise ParamsError(
            f"run.processes is {run.processes}, but WORLD_SIZE is {found}: the launcher has "
            "started another number of processes"
        )
    return True


def is_first() -> bool:
    """Whether this process is the one that writes: its launcher says so, or has no part in it."""
    return os.environ.get("RANK", "0") == "0"


def launch(section_name: str, stage_name: str, run: RunParams) -> int:
    """Run the stage of this process's command line as several processes; the exit code.

    Raises:
        ParamsError: there are too few GPUs, or RLHF_LAUNCH is no command.
        StageEnd: it was interrupted before the first of them could record an end.
    """
    outcome = Path(".work") / stage_name / "outcome.json"
    with (
        several_accelerators(run.device, 1 if LAUNCHER in os.environ else run.processes),
        tempfile.TemporaryDirectory(prefix="rlhf-") as private,
    ):
        before = _version(outcome)
        adopt_orphans()
        launcher = _launcher(run.processes, Path(private) / "meeting")
        process = _start([*launcher, "-m", f"tasks.{section_name}", *sys.argv[1:]], run)
        with _passing_on(process) as signalled:
            _wait(process, outcome, before)
    if _version(outcome) == before:
        if signalled:
            raise StageEnd("interrupted", f"{stage_name}: {INTERRUPTED}")
        if process.returncode == EXIT_CODES["bad_input"]:
            return process.returncode  # It could not start them, and has said why.
        sys.stderr.write(f"{stage_name}: its first process died; run it again to resume\n")
        return EXIT_CODES["failed"]
    return int(json.loads(outcome.read_text(encoding="utf-8"))["code"])


def _start(command: Sequence[str], run: RunParams) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=_environment(run),
            # A Ctrl-C comes through us.
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )
    except OSError as error:
        if LAUNCHER not in os.environ or error.filename is None:
            raise
        raise ParamsError(f"{LAUNCHER}: {error.filename!r}: {error.strerror}") from None


def _launcher(processes: int, meeting: Path) -> Sequence[str]:
    """The command of a launcher; ours meets its processes by a file.

    With `--standalone` it would listen on all interfaces, and unpickle whatever anybody who can
    connect, such as another user of this machine, puts there.
    """
    try:
        command = shlex.split(os.environ.get(LAUNCHER, ""))
    except ValueError as error:
        raise ParamsError(f"{LAUNCHER}: not a command: {error}") from None
    if command:
        return command
    # If it handled SIGTERM, it would not let the stage finish its checkpoint.
    alone = ["--signals-to-handle", "SIGQUIT", "--local-addr", "127.0.0.1"]
    by_file = ["--rdzv-backend", "c10d", "--rdzv-id", "stage", "--rdzv-conf", "store_type=file"]
    module = [sys.executable, "-m", "tasks.running.agent", *alone, *by_file]
    return [*module, "--rdzv-endpoint", str(meeting), "--nproc-per-node", str(processes)]


def _environment(run: RunParams) -> dict[str, str]:
    found = {
        "OMP_NUM_THREADS": str(run.threads),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SECONDS),
        **os.environ,
        STARTED_BY: str(started_by()),
    }
    if LAUNCHER not in os.environ:
        found |= {"GLOO_SOCKET_IFNAME": "lo"}
    return found


def _version(path: Path) -> tuple[int, int] | None:
    """What differs once the file has been replaced."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def _wait(process: subprocess.Popen[bytes], outcome: Path, before: object) -> None:
    """Return when the launcher and all processes have ended; end what outlasts the outcome."""
    deadline, started = None, False
    while process.poll() is None or children(os.getpid()):
        ended = process.returncode is not None
        started = _end_after_its_last(process, started)
        if deadline is None and (ended or _version(outcome) != before):
            # One that could not start its processes leaves none with something to save.
            refused = process.returncode == EXIT_CODES["bad_input"]
            over = refused or _version(outcome) != before
            deadline = time.monotonic() + (SECONDS if over else PATIENCE_SECONDS)
        if deadline is not None and time.monotonic() > deadline:
            for pid in children(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if ended:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        time.sleep(0.05)


def _end_after_its_last(process: subprocess.Popen[bytes], started: bool) -> bool:
    """Whether our launcher has started processes; with the last it ends, and need not say why.

    It would take seconds for that on a busy machine, and all that counts is in the outcome.
    """
    if process.returncode is not None or LAUNCHER in os.environ:
        return started
    working = any(map(_has_a_number, children(process.pid)))
    if started and not working:
        process.kill()
    return started or working


def _has_a_number(pid: int) -> bool:
    """Whether this is one of the stage's processes, and no zombie."""
    try:
        return b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass SIGTERM and Ctrl-C on to the processes, past our launcher; yields the signals that came.

    That a terminal was closed is passed on as a SIGTERM. A launcher of the user's own gets them
    itself, since its processes may be on other machines.
    """
    came: list[int] = []

    def hear(number: int, _frame: FrameType | None) -> None:
        number = signal.SIGTERM if number == signal.SIGHUP else number
        came.append(number)
        theirs = [] if LAUNCHER in os.environ else children(process.pid)
        for pid in theirs or [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number if theirs or LAUNCHER in os.environ else signal.SIGTERM)

    numbers = [signal.SIGTERM]
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            numbers.append(number)
    earlier = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
