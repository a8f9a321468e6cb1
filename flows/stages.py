"""One DVC stage in a subprocess: its lines go to the log, its outcome decides the state.

`dvc repro --single-item STAGE` says by its exit code only whether all went well. Why it did not is
in the stage's `.work/<stage>/outcome.json`, or, where the stage could not write one any more, in
DVC's last words.
"""

import json
import logging
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flows import processes
from flows.environment import stage_environment
from tasks.running.provenance import drop_recorded_checkpoints
from tasks.workspace.dvc_process import DVC
from tasks.workspace.files import relative_to
from tasks.workspace.worktrees import checkout_of

GRACE_SECONDS = 8.0
"""For a stage to take its step to the end and write a checkpoint: ten seconds after a cancel it has
gone. A step that takes longer is given up; the checkpoint before it is kept."""

_WORK = re.compile(r"(?<![\w/.-])\.work/")
"""How a stage begins a path in its workspace."""

LOOK_SECONDS = 10.0
"""So often a running stage's flow run is looked at: it may have been cancelled."""

How = Literal[
    "ran", "unchanged", "cached", "waiting", "blocked", "stopped", "bad_input", "failed", "killed",
    "refused",
]  # fmt: skip
"""ran, unchanged (nothing to do), cached (an earlier result was restored): all is well.
waiting (for people), blocked (by the data gate or a probe of the reward model), stopped (training
stopped itself), bad_input, failed: the stage said so. killed: a signal ended it. refused:
DVC could not run it at all."""

HOW_BY_EXIT_CODE: dict[int, How] = {2: "bad_input", 3: "stopped", 4: "blocked", 5: "waiting"}

_CHATTER = re.compile(
    r"To track the changes with git, run:|To enable auto staging, run:|Use `dvc push` to send"
    r"|\s+git add |\s+dvc config core.autostage"
)
"""DVC's advice after every single stage."""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EXIT_CODE = re.compile(r"^ERROR: failed to reproduce .*, exited with (-?\d+)$")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stage ended."""

    how: How
    message: str = ""
    """What people should know, one line; empty where there is nothing to add."""


def run_stage(
    stage: str,
    root: Path,
    *,
    execution: str,
    logger: logging.Logger | logging.LoggerAdapter[Any],
    is_cancelled: Callable[[], bool] | None = None,
) -> Ending:
    """Bring one DVC stage up to date; call it in the main thread.

    Where an exception comes from outside, DVC and the stage are asked to end, and the exception
    propagates. After a Ctrl-C the stage takes the step at hand to its end, however long, and writes
    a checkpoint; after a second one, or where the flow is cancelled, it has `GRACE_SECONDS`.

    Args:
        stage: DVC's name of it.
        root: the workspace, with dvc.yaml.
        execution: id of the pipeline execution, the parent run in MLflow.
        logger: gets each line that DVC and the stage write.
        is_cancelled: whether the stage is no longer wanted; asked in a thread. It then takes the
            step at hand to its end and writes a checkpoint. None: who cancels ends this process.
    """
    outcome_file = root / ".work" / stage / "outcome.json"
    before = _read(outcome_file)
    process = processes.start(
        # A stage waits a moment for a `dvc status` in another terminal; two runs of one stage
        # never wait for each other: DVC refuses the second.
        [*DVC, "--wait-for-lock", "repro", "--single-item", stage],
        cwd=root,
        env=stage_environment(root, execution),
        output=subprocess.PIPE,
    )
    said: deque[str] = deque(maxlen=200)
    try:
        with _ended_if(is_cancelled, process):
            for line in _readable(process):
                said.append(line)
                logger.log(_level(line), "%s", line)
        code = process.wait()
        drop_recorded_checkpoints(root)
    except KeyboardInterrupt:
        _finish_step(process, logger)
        raise
    except BaseException:
        _stop(process, logger, signal.SIGTERM)
        raise
    after = _read(outcome_file)
    # An outcome from an earlier run says nothing about this one.
    outcome = json.loads(after) if after and after != before else None
    return seen_from_checkout(ending(stage, code, outcome, list(said)), root)


def seen_from_checkout(found: Ending, root: Path) -> Ending:
    """The ending with the paths below `.work` of a run's workspace as they are from its checkout.

    Whoever reads them in Prefect has that in mind, and the workspace is a folder of it.
    """
    place = relative_to(root, checkout_of(root))
    if place == ".":
        return found
    return replace(found, message=_WORK.sub(f"{place}/.work/", found.message))


@contextmanager
def _ended_if(
    is_cancelled: Callable[[], bool] | None, process: "subprocess.Popen[bytes]"
) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while is_cancelled and not over.wait(LOOK_SECONDS):
            if is_cancelled() and not over.is_set():
                processes.signal_group(process, signal.SIGTERM)
                return

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()


def ending(stage: str, code: int, outcome: dict[str, Any] | None, said: list[str]) -> Ending:
    """How the stage ended, from all that is known of it.

    Args:
        stage: DVC's name of it.
        code: exit code of `dvc`.
        outcome: what the stage wrote during this run, None where it wrote nothing.
        said: the last lines of DVC and the stage.
    """
    if code == 0:
        return Ending(_how_well(stage, said))
    if outcome is not None and outcome["status"] not in ("done", "interrupted"):
        return Ending(outcome["status"], outcome["message"])
    if outcome is not None and outcome["status"] == "interrupted":
        return Ending("killed", f"{stage} was asked to end from outside; its checkpoint is kept")
    return _ending_in_dvcs_words(stage, code, said)


def _how_well(stage: str, said: list[str]) -> How:
    if f"Stage '{stage}' didn't change, skipping" in said:
        return "unchanged"
    if any(line.startswith(f"Stage '{stage}' is cached - skipping run") for line in said):
        return "cached"
    return "ran"


def _ending_in_dvcs_words(stage: str, code: int, said: list[str]) -> Ending:
    if code < 0:
        return Ending("killed", f"dvc was killed by {_signal_name(-code)} while it ran {stage}")
    for number, line in enumerate(said):
        if found := _EXIT_CODE.match(line):
            return _ending_by_exit_code(stage, int(found[1]), said[:number])
    errors = [line for line in said if line.startswith("ERROR:")]
    return Ending("refused", (errors or said or [f"dvc exited with {code}"])[-1])


def _ending_by_exit_code(stage: str, code: int, said: list[str]) -> Ending:
    """The stage itself exited with `code`, and wrote no outcome."""
    # Of a shell, 128 + n stands for signal n.
    number = -code if code < 0 else code - 128
    if number > 0:
        return Ending("killed", f"{stage} was killed by {_signal_name(number)}{_hint(number)}")
    last_words = said[-1] if said else f"{stage} exited with {code}"
    return Ending(HOW_BY_EXIT_CODE.get(code, "refused"), last_words)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(number: int) -> str:
    return "; is the memory used up?" if number == signal.SIGKILL else ""


def _readable(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """The lines as a log wants them: a bar's last state, no colours, no advice, none blank."""
    for raw in processes.lines(process):
        text = raw.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        line = _ESCAPE.sub("", text).rstrip()
        if line and not _CHATTER.match(line):
            yield line


def _level(line: str) -> int:
    if line.startswith("ERROR"):
        return logging.ERROR
    return logging.WARNING if line.startswith("WARNING") else logging.INFO


def _finish_step(
    process: "subprocess.Popen[bytes]", logger: logging.Logger | logging.LoggerAdapter[Any]
) -> None:
    """Pass a Ctrl-C on and wait; who pressed it sees what the stage says, and can do so again."""
    try:
        processes.signal_group(process, signal.SIGINT)
        # DVC waits for its stage.
        _show_rest(process, logger)
    except BaseException:
        # The stage takes a second one for "at once".
        _stop(process, logger, signal.SIGINT)
        raise


def _stop(
    process: "subprocess.Popen[bytes]",
    logger: logging.Logger | logging.LoggerAdapter[Any],
    number: signal.Signals,
) -> None:
    """End DVC and the stage by this signal, or after a grace period, and leave nobody behind.

    A SIGTERM meanwhile changes nothing: several may come for one cause.
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    processes.signal_group(process, number)
    patience = threading.Timer(GRACE_SECONDS, processes.signal_group, (process, signal.SIGKILL))
    patience.start()
    try:
        # DVC ends at once, the stage after its checkpoint: it is the pipe that tells.
        _show_rest(process, logger)
    finally:
        patience.cancel()
        processes.signal_group(process, signal.SIGKILL)
        signal.signal(signal.SIGTERM, before)
        process.wait()


def _show_rest(
    process: "subprocess.Popen[bytes]", logger: logging.Logger | logging.LoggerAdapter[Any]
) -> None:
    """Log what they still say, until none of them is left."""
    for line in _readable(process):
        logger.info("%s", line)
    process.wait()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
