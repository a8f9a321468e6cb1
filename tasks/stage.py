"""How every stage starts and ends.

A stage module gives `run_stage` its body: a function of a `Stage`. Around it stands all that the
stages share: parameters are checked, the process dies with its parent, one stage at a time holds
the machine, metrics go to local files first, outputs appear whole or not at all, and the outcome
is written down for whoever started it.
"""

import argparse
import contextlib
import gc
import logging
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from preferences.reader import MalformedDataError
from rlhf.manifests import DamagedError
from tasks.fingerprint import Identity, fingerprint, identify
from tasks.inputs import fill_paths, input_hashes
from tasks.outcome import EXIT_CODES, Cost, StageEnd, Status, process_age, write_outcome
from tasks.own_files import own_files, require_followed
from tasks.params import Params, ParamsError, RoundParams, flatten, load_params, section
from tasks.publishing import Staging, verify_model, write_history
from tasks.redaction import redact, redact_values
from tasks.signals import Signals, die_with_parent
from tasks.tracking import Output, RunStart, Spool, default_execution, git_commit, open_spool
from tasks.troubles import advice, explain
from tasks.work_folder import RUNNING, alone, checkpoint_folders, note_running

BAD_INPUT: Mapping[type[Exception], Status] = {
    MalformedDataError: "bad_input",
    ParamsError: "bad_input",
    DamagedError: "bad_input",
}
"""Errors of any stage that are its user's to mend."""

MODELS = "models/"
"""What lies below it was written by a stage, with a manifest; so one that is missing is damage."""

SPOOL_STATUS: dict[Status, Any] = {"done": "FINISHED", "interrupted": "KILLED"}


class Stage:
    """A running stage: its name, parameters, outputs and metrics."""

    def __init__(
        self,
        name: str,
        section_name: str,
        round_key: str | None,
        params: Params,
        inputs: Sequence[str],
    ):
        """Made by `run_stage`, in the repository root."""
        self.name = name
        self.root = Path.cwd()
        self.params = params
        self.round_key = round_key
        self.own_params = redact_values(
            {"run": asdict(params.run), section_name: section(params, section_name)}
        )
        named = own_files(self.root, params, section_name)
        self.input_paths = [*fill_paths(inputs, params, round_key), *named]
        self.inputs = input_hashes(self.root, self.input_paths)
        self.execution = os.environ.get("RLHF_EXECUTION") or default_execution(self.root)
        self.work = self.root / ".work" / name
        self.staging = Staging(self.root, self.work / "staging")
        self.signals = Signals()
        self.history: list[dict[str, float]] = []
        self.checkpoint_cost = Cost()
        self._spool: Spool | None = None
        self._outputs: list[Output] = []
        self._final: dict[str, float] = {}

    @property
    def round(self) -> RoundParams:
        """The round that the stage belongs to."""
        assert self.round_key is not None
        return self.params.rounds[self.round_key]

    @cached_property
    def identity(self) -> Identity:
        """What the outputs depend on; as it is when the stage starts."""
        return identify(
            self.root,
            self.name,
            params=self.own_params,
            inputs=self.input_paths,
            environment=self.environment(),
        )

    def begin(self) -> None:
        """Check the models among the inputs and begin to write down what MLflow is to get.

        Raises:
            DamagedError: a model folder is not what its manifest says, or has none.
        """
        for path in self.input_paths:
            if path.startswith(MODELS) and (self.root / path).is_dir():
                verify_model(Path(path))
        tags = {
            "git.commit": git_commit(self.root),
            "round": self.round_key or "",
            "fingerprint": fingerprint(self.identity),
        }
        start = RunStart(self.name, self.execution, flatten(self.own_params), self.inputs, tags)
        self._spool = open_spool(self.root, start)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Figures of one step: into history.csv and, by way of the spool, to MLflow."""
        self.history.append({"step": step, **metrics})
        assert self._spool is not None
        self._spool.log(step, metrics)

    def restore_history(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Figures of an earlier attempt; the spool leaves out what it has of them."""
        for row in rows:
            figures = dict(row)
            self.log(int(figures.pop("step")), figures)

    def final(self, metrics: Mapping[str, Any]) -> None:
        """The stage's final figures, nested as in metrics.json."""
        numbers = {
            key: float(value)
            for key, value in flatten(metrics).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._final |= numbers

    def write_history(self, folder: Path) -> None:
        """Everything logged so far as `history.csv`."""
        write_history(folder / "history.csv", self.history)

    def keep(self, *outputs: Output) -> None:
        """Outputs that MLflow gets, once they are published."""
        self._outputs += outputs

    def environment(self) -> dict[str, Any]:
        """What a result may depend on beside code, data and params."""
        return {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "torch": version("torch"),
            "transformers": version("transformers"),
            "threads": self.params.run.threads,
            "precision": self.params.run.precision,
        }

    def publish(self) -> None:
        """Make the outputs visible; the checkpoints that led to them have done their work."""
        self.staging.publish()
        for folder in checkpoint_folders(self.work):
            shutil.rmtree(folder, ignore_errors=True)

    def close_spool(self, status: Status, message: str) -> None:
        """Record how it ended, and why."""
        if self._spool is not None:
            # Of what did not end well only the gate's reasons are there to be looked at.
            outputs = self._outputs if status in ("done", "blocked") else []
            # A curve's last point is its final value: sent again it would be a point twice.
            curves = {name for row in self.history for name in row}
            final = {name: value for name, value in self._final.items() if name not in curves}
            self._spool.finish(SPOOL_STATUS.get(status, "FAILED"), final, outputs, message)


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
        inputs: what it reads of earlier stages; `{key}`, `{policy}` ... stand for the round's.
        name: DVC stage, where it is not the section (`baseline`, `test`).
        arguments: command line without the program; that of the process by default.
        per_round: takes `--round KEY`.
        errors: further exceptions that are the user's to mend, or that end training.
    """
    started = time.monotonic() - process_age()
    # What is imported stays. Python's exit alone looks a second for garbage in it.
    gc.freeze()
    gc.enable()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(
        prog=f"python -m tasks.{section_name}", description=body.__doc__
    )
    if per_round:
        parser.add_argument("--round", required=True, help="key of the round in params.yaml")
    options = parser.parse_args(arguments)
    try:
        params = load_params(Path("params.yaml"))
        require_followed(Path.cwd(), params)
        round_key = _round_key(params, options.round) if per_round else None
    except ParamsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CODES["bad_input"]
    stage_name = f"{section_name}@{round_key}" if round_key else name or section_name
    die_with_parent()
    try:
        with alone(stage_name):
            stage = Stage(stage_name, section_name, round_key, params, inputs)
            return _run_and_record(stage, body, errors or {}, started)
    except OSError as error:  # Not even the outcome could be written down.
        if (trouble := explain(error, Path(".work"))) is None:
            raise
        sys.stderr.write(f"{stage_name}: {trouble}\n")
        return EXIT_CODES["failed"]


def _run_and_record(
    stage: Stage,
    body: Callable[[Stage], None],
    errors: Mapping[type[Exception], Status],
    started: float,
) -> int:
    note_running(stage.work, stage.name, stage.execution)
    with _shipping(stage):
        status, message = _run(stage, body, {**errors, **BAD_INPUT})
        message = redact(message + advice(stage.root, stage.name, status))
        stage.close_spool(status, message)
    cost, execution = stage.checkpoint_cost, stage.execution
    write_outcome(
        stage.root, stage.name, status, message, started=started, execution=execution, cost=cost
    )
    (stage.work / RUNNING).unlink()
    if status != "done":
        sys.stderr.write(f"{stage.name}: {message}\n")
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
        return end.status, str(end)
    except KeyboardInterrupt:
        return "interrupted", "interrupted; run it again to go on"
    except tuple(known) as error:
        kind = next(kind for kind in known if isinstance(error, kind))
        return known[kind], str(error)
    except BaseException as error:
        if (trouble := explain(error, stage.work)) is not None:
            shutil.rmtree(stage.work / "staging", ignore_errors=True)
            return "failed", trouble
        sys.stderr.write(redact(traceback.format_exc()))
        return "failed", f"{type(error).__name__}: {error}"
    return "done", ""


def _round_key(params: Params, key: str) -> str:
    if key not in params.rounds:
        raise ParamsError(f"--round: {key!r} is not one of {', '.join(params.rounds)}")
    return key


@contextlib.contextmanager
def _shipping(stage: Stage) -> Iterator[None]:
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
