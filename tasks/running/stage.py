"""A running stage: what it knows, where it logs, and how its outputs become visible.

A stage module gives `run_stage` (`tasks.running.runner`) its body: a function of a `Stage`.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlhf.bits import require
from tasks.own_data.files import own_files
from tasks.params.loading import Params, RoundParams, flatten, section
from tasks.params.redaction import redact_values
from tasks.running.environment import describe_environment
from tasks.running.fingerprint import Identity, fingerprint, identify
from tasks.running.inputs import fill_paths, input_hashes
from tasks.running.machine_use import MachineUse
from tasks.running.outcome import Cost, Status
from tasks.running.provenance import entry_digest, forget_note, note_made_from, require_true_entries
from tasks.running.signals import Signals
from tasks.running.snapshot import Snapshot, require_as_started
from tasks.running.staging import Staging, verify_model, write_history
from tasks.tracking.execution_record import RESULTS, record_start
from tasks.tracking.spool import Output, RunStart, Spool, open_spool
from tasks.workspace.execution import current_execution
from tasks.workspace.files import git_commit

MODELS = "models/"
"""Stages write everything below it, with manifests; so a missing manifest is damage."""

SPOOL_STATUS: dict[Status, Any] = {
    "done": "FINISHED",
    "interrupted": "KILLED",
    "waiting": "SCHEDULED",
}


class Stage:
    """A running stage: its name, parameters, outputs and metrics."""

    own_errors: Mapping[type[Exception], Status] = MappingProxyType({})
    """Errors of the way in which it runs, beside those of its body."""

    def __init__(
        self,
        snapshot: Snapshot,
        section_name: str,
        round_key: str | None,
        params: Params,
        inputs: Sequence[str],
    ):
        """Made by `run_stage`, in the repository root.

        Raises:
            BitsError: this process computes with other bits than `run.bits` says.
        """
        self.snapshot = snapshot
        self.name = snapshot.stage
        self.root = Path.cwd()
        self.params = params
        self.bits = require(params.run.bits)
        self.round_key = round_key
        self.own_params = redact_values(
            {"run": asdict(params.run), section_name: section(params, section_name)}
        )
        named = own_files(self.root, params, section_name)
        self.input_paths = [*fill_paths(inputs, params, round_key), *named]
        there = {path: state.md5 for path, state in snapshot.files.items()}
        self.inputs = input_hashes(self.root, self.input_paths, there)
        self.execution = current_execution(self.root)
        self.work = self.root / ".work" / self.name
        self._staging: Staging | None = None
        self.signals = Signals(self.name)
        self.history: list[dict[str, float]] = []
        self.checkpoint_cost = Cost()
        self._entry_before = ""
        self._published: list[Path] = []
        self._hashes: dict[str, str] = {}
        self._spool: Spool | None = None
        self._use: MachineUse | None = None
        self._outputs: list[Output] = []
        self._final: dict[str, float] = {}

    @property
    def round(self) -> RoundParams:
        """The round that the stage belongs to."""
        assert self.round_key is not None
        return self.params.rounds[self.round_key]

    @property
    def staging(self) -> Staging:
        """Where outputs are built; a stage of several processes has come to its writing."""
        self.go_on_alone()
        assert self._staging is not None
        return self._staging

    def go_on_alone(self) -> None:
        """End the other processes of a stage that is several (`tasks.running.ranks`)."""

    @cached_property
    def identity(self) -> Identity:
        """What the outputs depend on; as it is when the stage starts."""
        return identify(
            self.root,
            self.name,
            params=self.own_params,
            inputs=self.input_paths,
            environment=self.environment,
        )

    def begin(self) -> None:
        """Check what the stage builds on and open the spool for MLflow.

        Raises:
            ChangedMeanwhileError: code or dvc.yaml was edited while the stage started.
            FalseEntryError: dvc.lock is wrong about an earlier stage.
            DamagedError: a model folder is not what its manifest says, or has none.
        """
        self._staging = Staging(self.root, self.work / "staging")
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
            **{f"environment.{name}": str(value) for name, value in self.environment.items()},
        }
        record_start(self.root, self.execution, self.params)
        start = RunStart(self.name, self.execution, flatten(self.own_params), self.inputs, tags)
        self._spool = open_spool(self.root, start)
        self._use = MachineUse(self._spool, gpu=self.environment["device"] == "cuda")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one step: into history.csv and, through the spool, to MLflow."""
        self.history.append({"step": step, **metrics})
        assert self._spool is not None
        self._spool.log(step, metrics)

    def restore_history(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Metrics of an earlier attempt; the spool skips those that it already has."""
        for row in rows:
            metrics = dict(row)
            self.log(int(metrics.pop("step")), metrics)

    def final(self, metrics: Mapping[str, Any]) -> None:
        """The stage's final metrics, nested as in metrics.json."""
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

    @cached_property
    def environment(self) -> dict[str, Any]:
        """What it runs on; no output says so."""
        return describe_environment(self.params.run, self.bits)

    def publish(self) -> None:
        """Make the outputs visible, unless what they were made from has changed.

        Raises:
            ChangedMeanwhileError: it has.
        """
        self.snapshot.require_unchanged(self.root)
        assert self._staging is not None
        self._published = self._staging.publish()
        self._hashes = note_made_from(self.root, self.snapshot, self._entry_before)

    @property
    def has_results(self) -> bool:
        """Whether it has published those of the whole pipeline."""
        return self.root / RESULTS in self._published

    def withdraw(self) -> None:
        """Remove the outputs, published or not: dvc.lock would describe them wrongly."""
        forget_note(self.root, self.name)
        if self._staging is not None:
            self._staging.discard()
        for path in self._published:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def remove_earlier(self, *names: str) -> None:
        """Remove what an earlier attempt left below the stage's working folder."""
        for name in names:
            shutil.rmtree(self.work / name, ignore_errors=True)

    def close_spool(self, status: Status, message: str) -> None:
        """Record how it ended, and why."""
        if self._use is not None:
            self._use.close()
        if self._spool is not None:
            # Of stages that did not succeed, only the guards have something to show: their reasons.
            outputs = self._outputs if status in ("done", "blocked", "stopped") else []
            # A curve's last point is its final value; sending it again would duplicate it.
            curves = {name for row in self.history for name in row}
            final = {name: value for name, value in self._final.items() if name not in curves}
            hashes = self._hashes if status == "done" else {}
            how = SPOOL_STATUS.get(status, "FAILED")
            self._spool.finish(how, final, outputs, message, hashes)
