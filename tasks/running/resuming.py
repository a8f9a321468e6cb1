"""Resumes a training stage where a killed or interrupted run stopped, with the same final bytes.

The state of a training, the metrics logged so far and what else the stage has gathered are in
`.work/<stage>/<fingerprint>`. The fingerprint stands for params, inputs, code and environment: a
run that differs in any of them starts from the beginning, and says so.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from rlhf import distributed
from rlhf.checkpoints import (
    checkpoints,
    load_newest,
    random_states,
    restore_random_states,
    save_checkpoint,
)
from rlhf.manifests import MANIFEST
from tasks.running.fingerprint import differences, fingerprint
from tasks.running.outcome import StageEnd
from tasks.running.signals import PATIENCE_SECONDS
from tasks.running.stage import Stage
from tasks.workspace.work_folder import checkpoint_folders

log = logging.getLogger(__name__)

EVERY_SECONDS = 30.0
"""Time between two checkpoints, and so the most work that a kill can cost."""

COST_FACTOR = 50.0
"""At least 50 times the duration of the last one pass before the next: below 2 % of a stage."""

LONG_STEP_SECONDS = PATIENCE_SECONDS / 2
"""A step that takes longer may not end before a SIGTERM's time is up; what is finished by then
must be in a checkpoint already, so one is written after each such step that the cost allows."""

Step = TypeVar("Step")


class Trainable(Protocol):
    """A training whose whole state goes in and out."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...

    def require_finite_weights(self) -> None:
        """Raise where a weight is NaN or infinite."""
        ...


class Checkpoints:
    """The checkpoints of one training: where it resumes, and when the next is due.

    `RLHF_CHECKPOINT_SECONDS` sets the time between two (0: after each step), and
    `RLHF_CHECKPOINT_STEPS` writes one after so many steps whatever the time.
    """

    def __init__(
        self, stage: Stage, training: Trainable, gathered: list[dict[str, Any]] | None = None
    ):
        """Restore `training` and the stage's metrics from the newest good checkpoint.

        Args:
            stage: the running stage.
            training: fresh, built from the stage's params.
            gathered: JSON objects that the stage adds to as it trains; filled in as well.
        """
        self._stage, self._training = stage, training
        self._gathered = [] if gathered is None else gathered
        self._folder = stage.work / _of_the_first(fingerprint(stage.identity))
        self._steps = 0
        self._saved_steps = 0
        self._saved_at = time.monotonic()
        self._cost = 0.0
        self._seconds = os.environ.get("RLHF_CHECKPOINT_SECONDS")
        self._every_steps = int(os.environ.get("RLHF_CHECKPOINT_STEPS", "0"))
        self._resume()
        self._agree()

    def after_each(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Pass steps on; once the stage has logged one, write a checkpoint if it is due.

        Several processes write together when it is due to the first, and what one is asked all are.

        Raises:
            KeyboardInterrupt: a signal asked the stage to end; a checkpoint has been written.
            NonFiniteError: a weight is no number; neither checkpoint nor output gets it.
        """
        with self._stage.signals.patient():
            began = time.monotonic()
            for step in steps:
                yield step
                self._steps += 1
                due = self._due(time.monotonic() - began)
                asked, due = _any_asked_and_due_to_the_first(self._stage.signals.asked, due)
                if asked:
                    self._stage.signals.step_has_ended()
                if asked or due:
                    self._save()
                began = time.monotonic()
                if asked:
                    raise KeyboardInterrupt
        self._training.require_finite_weights()

    def _due(self, step_seconds: float) -> bool:
        if self._every_steps and self._steps - self._saved_steps >= self._every_steps:
            return True
        if self._seconds is not None:
            pause = float(self._seconds)
        else:
            least = 0.0 if step_seconds > LONG_STEP_SECONDS else EVERY_SECONDS
            pause = max(least, COST_FACTOR * self._cost)
        return time.monotonic() - self._saved_at >= pause

    def _save(self) -> None:
        started = time.monotonic()
        self._training.require_finite_weights()
        state = {
            "training": self._training.state_dict(),
            "history": self._stage.history,
            "gathered": self._gathered,
            "random": random_states(),
        }
        facts = {"fingerprint": self._folder.name, **self._stage.identity}
        save_checkpoint(self._folder, self._steps, state, facts)
        self._saved_at, self._saved_steps = time.monotonic(), self._steps
        self._cost = self._saved_at - started
        self._stage.checkpoint_cost.written += 1
        self._stage.checkpoint_cost.seconds += self._cost

    def _resume(self) -> None:
        found, skipped = load_newest(self._folder)
        for line in skipped:
            log.warning("%s: damaged checkpoint skipped: %s", self._stage.name, line)
        if found is None:
            self._explain_fresh_start()
            return
        self._training.load_state_dict(found.state["training"])
        self._stage.restore_history(found.state["history"])
        self._gathered.extend(found.state["gathered"])
        restore_random_states(found.state["random"])
        self._steps = self._saved_steps = found.step
        log.info("%s resumes from its checkpoint at step %d", self._stage.name, found.step)
        facts = _facts(self._folder / f"step-{found.step:08d}") or {}
        before, now = _held(facts.get("made_on", {})), _held(self._stage.environment)
        if before != now:
            log.warning(
                "%s: the checkpoint is of a run with %s, this one has %s: the result is "
                "that of either within rounding, and bit for bit that of neither",
                self._stage.name,
                before,
                now,
            )

    def _agree(self) -> None:
        """See that all processes have found the same checkpoint.

        Raises:
            StageEnd: they have not.
        """
        steps = distributed.gather(torch.tensor([self._steps])).unique().tolist()
        if len(steps) > 1:
            raise StageEnd(
                "bad_input",
                f"the processes found checkpoints of steps {' and '.join(map(str, steps))}: on "
                "several machines they need one file system",
            )

    def _explain_fresh_start(self) -> None:
        """Say why existing checkpoints are not used."""
        if checkpoints(self._folder):
            log.warning("%s: all checkpoints are damaged; starts anew", self._stage.name)
            return
        for folder in reversed(checkpoint_folders(self._stage.work)):
            for path in checkpoints(folder):
                if (facts := _facts(path)) is not None:
                    log.warning(
                        "%s: the checkpoint of step %s belongs to a run with other inputs, so this "
                        "one starts from the beginning. Differences: %s",
                        self._stage.name,
                        facts.get("step"),
                        differences(facts, self._stage.identity),
                    )
                    return


def _of_the_first(name: str) -> str:
    """The first process's, by which all go: of another the GPU or the processor may differ."""
    return bytes(distributed.gather_rows([list(name.encode())])[0]).decode()


def _any_asked_and_due_to_the_first(asked: bool, due: bool) -> tuple[bool, bool]:
    """Whether any process is asked to end, and whether the first wants a checkpoint."""
    first = distributed.rank() == 0
    asked_of, due_to_first = distributed.totals([float(asked), float(due and first)])
    return asked_of > 0, due_to_first > 0


def _held(environment: Mapping[str, Any]) -> str:
    """How many processes a run has, and how they hold the weights, in words."""
    count = environment.get("processes", 1)
    processes = f"{count} process" if count == 1 else f"{count} processes"
    return f"{processes} and divided weights" if environment.get("sharded") else processes


def _facts(path: Path) -> Mapping[str, Any] | None:
    try:
        facts: Mapping[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts
