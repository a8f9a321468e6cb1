"""Runs a stage's body to its end and records, for whoever started it, how it ended."""

import contextlib
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from preferences.reader import MalformedDataError
from rlhf.manifests import DamagedError
from tasks.outcome import EXIT_CODES, Setting, StageEnd, Status, write_outcome
from tasks.params import ParamsError
from tasks.provenance import FalseEntryError
from tasks.redaction import redact
from tasks.snapshot import ChangedMeanwhileError
from tasks.troubles import advice, explain
from tasks.work_folder import RUNNING, note_running

if TYPE_CHECKING:
    from tasks.stage import Stage

BAD_INPUT: Mapping[type[Exception], Status] = {
    MalformedDataError: "bad_input",
    ParamsError: "bad_input",
    DamagedError: "bad_input",
    ChangedMeanwhileError: "bad_input",
    FalseEntryError: "bad_input",
}
"""Errors of any stage that are its user's to mend."""


def run_and_record(
    stage: "Stage",
    body: Callable[["Stage"], None],
    errors: Mapping[type[Exception], Status],
    started: float,
) -> int:
    """Run a stage that holds the machine; the exit code."""
    note_running(stage.work, stage.name, stage.execution)
    with _shipping(stage):
        status, message = _run(stage, body, {**errors, **BAD_INPUT})
        message = redact(message + advice(stage.root, stage.name, status))
        stage.close_spool(status, message)
    if status == "done":
        status, message = _look_once_more(stage)
    write_outcome(
        stage.root,
        stage.name,
        status,
        message,
        started=started,
        setting=Setting(stage.execution, stage.environment()),
        cost=stage.checkpoint_cost,
    )
    (stage.work / RUNNING).unlink()
    if status != "done":
        sys.stderr.write(f"{stage.name}: {message}\n")
    return EXIT_CODES[status]


def _run(
    stage: "Stage", body: Callable[["Stage"], None], known: Mapping[type[Exception], Status]
) -> tuple[Status, str]:
    try:
        with stage.signals.heard():
            stage.begin()
            body(stage)
            stage.publish()
    except StageEnd as end:
        return end.status, str(end)
    except KeyboardInterrupt:
        return "interrupted", "interrupted; run it again to go on"
    except tuple(known) as error:
        kind = next(kind for kind in known if isinstance(error, kind))
        if kind is ChangedMeanwhileError:
            stage.withdraw()
        return known[kind], str(error)
    except BaseException as error:
        if (trouble := explain(error, stage.work)) is not None:
            shutil.rmtree(stage.work / "staging", ignore_errors=True)
            return "failed", trouble
        sys.stderr.write(redact(traceback.format_exc()))
        return "failed", f"{type(error).__name__}: {error}"
    return "done", ""


def _look_once_more(stage: "Stage") -> tuple[Status, str]:
    """Compare as late as can be: DVC reads params and hashes once this process has ended."""
    try:
        stage.snapshot.require_unchanged(stage.root)
    except ChangedMeanwhileError as error:
        stage.withdraw()
        message = redact(f"{error}{advice(stage.root, stage.name, 'bad_input')}")
        stage.close_spool("bad_input", message)
        return "bad_input", message
    stage.drop_checkpoints()
    return "done", ""


@contextlib.contextmanager
def _shipping(stage: "Stage") -> Iterator[None]:
    """Ship metrics to MLflow beside the work, unless whoever started the stage does."""
    if os.environ.get("RLHF_SHIPPER") == "driver":
        yield
        return
    from tasks.shipping import Shipper  # noqa: PLC0415 (costs time that a driver's stages save)

    shipper = Shipper(stage.root, models=False)
    try:
        yield
    finally:
        shipper.close(deadline_seconds=10)
