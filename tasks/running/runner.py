"""How every stage starts and ends.

A stage module gives `run_stage` its body: a function of a `Stage`. Everything that stages share is
here: parameters are checked, the process dies with its parent, one stage at a time holds the
machine, metrics go to local files first, outputs appear whole or not at all, and the outcome is
recorded for whoever started it.
"""

import argparse
import contextlib
import gc
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from preferences.reader import MalformedDataError
from rlhf.bits import BitsError
from rlhf.manifests import DamagedError
from tasks.own_data.files import require_followed
from tasks.params.loading import Params, ParamsError, load_params
from tasks.params.redaction import redact
from tasks.running import launch
from tasks.running.machine_errors import advice, explain
from tasks.running.meeting import require_place
from tasks.running.outcome import (
    EXIT_CODES,
    Setting,
    StageEnd,
    Status,
    process_age,
    seconds_of_stages,
    write_outcome,
    write_refusal,
)
from tasks.running.provenance import FalseEntryError, drop_recorded_checkpoints
from tasks.running.saying import say
from tasks.running.screen import log_to_screen, say_if_not_portable
from tasks.running.signals import die_with_parent, interruptible, outer_signals_restored
from tasks.running.snapshot import ChangedMeanwhileError, take_snapshot
from tasks.running.stage import Stage
from tasks.running.terminal import harmless
from tasks.tracking.execution_record import record_published_results
from tasks.workspace.accelerators import sole_accelerator
from tasks.workspace.dvc_definition import DefinitionError
from tasks.workspace.files import DamagedNoteError
from tasks.workspace.shared_weights import share_outputs
from tasks.workspace.work_folder import RUNNING, alone, note_running

BAD_INPUT: Mapping[type[Exception], Status] = {
    MalformedDataError: "bad_input",
    ParamsError: "bad_input",
    DamagedError: "bad_input",
    ChangedMeanwhileError: "bad_input",
    FalseEntryError: "bad_input",
    BitsError: "bad_input",
}
"""Errors in any stage that the user has to fix."""


@interruptible
def run_stage(
    section_name: str,
    body: Callable[[Stage], None],
    *,
    inputs: Sequence[str] = (),
    name: str | None = None,
    arguments: Sequence[str] | None = None,
    per_round: bool = False,
    errors: Mapping[type[Exception], Status] | None = None,
) -> int:
    """Run a stage from its command line and return the exit code.

    Args:
        section_name: section of params.yaml that steers it.
        body: does the work; what it raises decides the outcome.
        inputs: outputs of earlier stages that it reads; `{key}`, `{policy}` ... are the round's.
        name: DVC stage, if its name is not that of the section (`baseline`, `test`).
        arguments: command line without the program; that of the process by default.
        per_round: takes `--round KEY`.
        errors: further exceptions that the user has to fix, or that end training.
    """
    started = time.monotonic() - process_age()
    # Without this, Python would spend a second at exit on collecting the imported modules.
    gc.freeze()
    gc.enable()
    log_to_screen()
    round_key = _asked_round(section_name, body, arguments, per_round=per_round)
    try:
        params = _checked_params(round_key)
    except ParamsError as error:
        say(f"{error}\n")
        return EXIT_CODES["bad_input"]
    stage_name = f"{section_name}@{round_key}" if round_key else name or section_name
    die_with_parent()
    several = launch.wants_several(params.run, section_name)
    try:
        if several and not launch.is_launched(params.run):
            return launch.launch(section_name, stage_name, params.run)
        if several and not launch.is_first():
            return _compute(section_name, stage_name, round_key, inputs, body, errors or {})
        with _holding_the_machine(stage_name, params.run.device):
            # Before anything is read; params again, since we may have waited for another stage.
            snapshot = take_snapshot(Path.cwd(), stage_name, ("run", section_name))
            params = load_params(Path("params.yaml"))
            kind = _first_of_several(params) if several else Stage
            stage = kind(snapshot, section_name, round_key, params, inputs)
            say_if_not_portable(stage)
            code = _run_and_record(stage, body, errors or {}, started)
            # A launcher would end all for another code; ours reads the outcome.
            return 0 if several else code
    except (ParamsError, DefinitionError, BitsError, DamagedNoteError, StageEnd) as error:
        say(f"{error}\n")
        status = error.status if isinstance(error, StageEnd) else "bad_input"
        records = launch.is_first() or not several
        return _refused(stage_name, status, redact(str(error)), started, records=records)
    except OSError as error:  # Not even the outcome could be recorded.
        if (trouble := explain(error, Path(".work"))) is None:
            raise
        say(f"{stage_name}: {trouble}\n")
        return EXIT_CODES["failed"]


def _refused(
    stage_name: str, status: Status, message: str, started: float, *, records: bool
) -> int:
    """Record bad input that was found before the body began, for the driver; the exit code."""
    if status == "bad_input" and records:
        write_refusal(Path.cwd(), stage_name, message, started=started)
    return EXIT_CODES[status]


@contextlib.contextmanager
def _holding_the_machine(stage: str, device: str) -> Iterator[None]:
    with alone(stage), sole_accelerator(device):
        # Of earlier stages, since nobody else can replace their outputs now.
        drop_recorded_checkpoints(Path.cwd())
        share_outputs(Path.cwd())
        yield


def _asked_round(
    section_name: str,
    body: Callable[[Stage], None],
    arguments: Sequence[str] | None,
    *,
    per_round: bool,
) -> str | None:
    """The round that the command line names, where a stage belongs to one."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tasks.{section_name}", description=body.__doc__
    )
    if per_round:
        parser.add_argument("--round", required=True, help="key of the round in params.yaml")
    options = parser.parse_args(arguments)
    return str(options.round) if per_round else None


def _checked_params(round_key: str | None) -> Params:
    """The params, which have this round.

    Raises:
        ParamsError: they have not, or something is wrong with them.
    """
    params = load_params(Path("params.yaml"))
    require_followed(Path.cwd(), params)
    if round_key not in (None, *params.rounds):
        raise ParamsError(f"--round: {round_key!r} is not one of {', '.join(params.rounds)}")
    return params


def _first_of_several(params: Params) -> type[Stage]:
    """The kind of stage that the first process has, once it has met the others.

    Raises:
        ParamsError: its launcher has named no place where they could meet.
        StageEnd: they have ended.
    """
    require_place()
    from tasks.running import ranks  # noqa: PLC0415 (loads torch, which not every stage needs)

    ranks.meet(params.run)
    return ranks.FirstStage


def _compute(
    section_name: str,
    stage_name: str,
    round_key: str | None,
    inputs: Sequence[str],
    body: Callable[[Stage], None],
    errors: Mapping[type[Exception], Status],
) -> int:
    """Run the body in a process that is not the first; the exit code."""
    from tasks.running import ranks  # noqa: PLC0415 (loads torch, which not every stage needs)

    work = ranks.Work(section_name, stage_name, round_key, inputs, body)
    return ranks.compute(work, {**errors, **BAD_INPUT})


@outer_signals_restored()
def _run_and_record(
    stage: Stage,
    body: Callable[[Stage], None],
    errors: Mapping[type[Exception], Status],
    started: float,
) -> int:
    """Run a stage that holds the machine; the exit code."""
    note_running(stage.work, stage.name, stage.execution)
    try:
        with _shipping(stage, started):
            status, message = _run(stage, body, {**errors, **BAD_INPUT, **stage.own_errors})
            # Words of a server or of somebody's data may be in it.
            message = harmless(redact(message + advice(stage.root, stage.name, status)))
            stage.close_spool(status, message)
        if status == "done":
            status, message = _look_once_more(stage)
        write_outcome(
            stage.root,
            stage.name,
            status,
            message,
            started=started,
            setting=Setting(stage.execution, stage.environment),
            cost=stage.checkpoint_cost,
        )
    finally:
        # Where it stays, a stage was killed: not where the disk has no room for the outcome.
        (stage.work / RUNNING).unlink(missing_ok=True)
    if status != "done":
        say(f"{stage.name}: {message}\n")
    return EXIT_CODES[status]


def _run(
    stage: Stage, body: Callable[[Stage], None], known: Mapping[type[Exception], Status]
) -> tuple[Status, str]:
    try:
        with stage.signals.heard():
            stage.begin()
            body(stage)
            stage.publish()
    except StageEnd as end:
        if end.status == "waiting":  # The usual state of a round that people label.
            shutil.rmtree(stage.work / "staging", ignore_errors=True)
        return end.status, str(end)
    except KeyboardInterrupt:
        return stage.signals.end
    except tuple(known) as error:
        kind = next(kind for kind in known if isinstance(error, kind))
        if kind is ChangedMeanwhileError:
            stage.withdraw()
        return known[kind], str(error)
    except BaseException as error:
        if (trouble := explain(error, stage.work)) is not None:
            shutil.rmtree(stage.work / "staging", ignore_errors=True)
            return "failed", trouble
        say(redact(traceback.format_exc()))
        return "failed", f"{type(error).__name__}: {error}"
    return "done", ""


def _look_once_more(stage: Stage) -> tuple[Status, str]:
    """Compare as late as possible: DVC reads params and hashes after this process has ended."""
    try:
        stage.snapshot.require_unchanged(stage.root)
    except ChangedMeanwhileError as error:
        stage.withdraw()
        message = redact(f"{error}{advice(stage.root, stage.name, 'bad_input')}")
        stage.close_spool("bad_input", message)
        return "bad_input", message
    return "done", ""


@contextlib.contextmanager
def _shipping(stage: Stage, started: float) -> Iterator[None]:
    """Ship metrics to MLflow beside the work, unless whoever started the stage does."""
    if os.environ.get("RLHF_SHIPPER") == "driver":
        yield
        return
    from tasks.tracking.shipper import Shipper  # noqa: PLC0415 (costs time that a driver's stages save)
    from tasks.tracking.shipping import deadline_seconds  # noqa: PLC0415

    shipper = Shipper(stage.root, models=False)
    try:
        yield
        if stage.has_results:
            before = seconds_of_stages(stage.root, stage.execution)
            seconds = before + time.monotonic() - started
            record_published_results(stage.root, stage.execution, seconds=seconds)
    finally:
        # Ctrl-C ends the wait; how the stage has ended is known, and still to be recorded.
        with contextlib.suppress(KeyboardInterrupt):
            shipper.close(deadline_seconds(stage.root))
