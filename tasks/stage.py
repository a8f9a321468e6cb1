"""How every stage starts and ends.

A stage module gives `run_stage` its body: a function of a `Stage`. Around it stands all that the
stages share: parameters are checked, the process dies with its parent, one stage at a time holds
the machine, metrics go to local files first, outputs appear whole or not at all, and the outcome
is written down for whoever started it.
"""

import argparse
import gc
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tasks.dvc_definition import DefinitionError
from tasks.ending import run_and_record
from tasks.execution_record import record_start
from tasks.fingerprint import Identity, fingerprint, identify
from tasks.inputs import fill_paths, input_hashes
from tasks.outcome import EXIT_CODES, Cost, Status, process_age
from tasks.own_files import own_files, require_followed
from tasks.params import Params, ParamsError, RoundParams, flatten, load_params, section
from tasks.provenance import entry_digest, forget_note, note_made_from, require_true_entries
from tasks.publishing import Staging, verify_model, write_history
from tasks.redaction import redact_values
from tasks.signals import Signals, die_with_parent
from tasks.snapshot import Snapshot, require_as_started, take_snapshot
from tasks.tracking import Output, RunStart, Spool, default_execution, git_commit, open_spool
from tasks.troubles import explain
from tasks.work_folder import alone, checkpoint_folders

MODELS = "models/"
"""What lies below it was written by a stage, with a manifest; so one that is missing is damage."""

SPOOL_STATUS: dict[Status, Any] = {"done": "FINISHED", "interrupted": "KILLED"}


class Stage:
    """A running stage: its name, parameters, outputs and metrics."""

    def __init__(
        self,
        snapshot: Snapshot,
        section_name: str,
        round_key: str | None,
        params: Params,
        inputs: Sequence[str],
    ):
        """Made by `run_stage`, in the repository root."""
        self.snapshot = snapshot
        self.name = snapshot.stage
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
        self.work = self.root / ".work" / self.name
        self.staging = Staging(self.root, self.work / "staging")
        self.signals = Signals(self.name)
        self.history: list[dict[str, float]] = []
        self.checkpoint_cost = Cost()
        self._entry_before = ""
        self._published: list[Path] = []
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
        """Check what the stage builds on and begin to write down what MLflow is to get.

        Raises:
            ChangedMeanwhileError: code or dvc.yaml was edited while the stage started.
            FalseEntryError: dvc.lock is wrong about an earlier stage.
            DamagedError: a model folder is not what its manifest says, or has none.
        """
        forget_note(self.root, self.name)
        require_as_started(self.root, self.snapshot)
        require_true_entries(self.root)
        self._entry_before = entry_digest(self.root, self.name)
        for path in self.input_paths:
            if path.startswith(MODELS) and (self.root / path).is_dir():
                verify_model(Path(path))
        tags = {
            "git.commit": git_commit(self.root),
            "round": self.round_key or "",
            "fingerprint": fingerprint(self.identity),
            **{f"environment.{name}": str(value) for name, value in self.environment().items()},
        }
        record_start(self.root, self.execution, self.params)
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
        """Make the outputs visible, unless what they were made from has changed.

        Raises:
            ChangedMeanwhileError: it has.
        """
        self.snapshot.require_unchanged(self.root)
        self._published = self.staging.publish()
        note_made_from(self.root, self.snapshot, self._entry_before)

    def withdraw(self) -> None:
        """Remove the outputs, visible or not, that nothing true could be recorded of."""
        forget_note(self.root, self.name)
        self.staging.discard()
        for path in self._published:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def drop_checkpoints(self) -> None:
        """The outputs stay: what led to them has done its work."""
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
            # Before anything is read; params again, since another stage may have held us up.
            snapshot = take_snapshot(Path.cwd(), stage_name, ("run", section_name))
            params = load_params(Path("params.yaml"))
            stage = Stage(snapshot, section_name, round_key, params, inputs)
            return run_and_record(stage, body, errors or {}, started)
    except (ParamsError, DefinitionError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CODES["bad_input"]
    except OSError as error:  # Not even the outcome could be written down.
        if (trouble := explain(error, Path(".work"))) is None:
            raise
        sys.stderr.write(f"{stage_name}: {trouble}\n")
        return EXIT_CODES["failed"]


def _round_key(params: Params, key: str) -> str:
    if key not in params.rounds:
        raise ParamsError(f"--round: {key!r} is not one of {', '.join(params.rounds)}")
    return key
