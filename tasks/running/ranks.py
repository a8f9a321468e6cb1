"""The processes of a stage that is several: the first writes, the others compute for it.

All of them run the stage's body. Where it asks for the place of its first output, nothing is left
to be shared: the first process goes on alone, and the others end.
"""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rlhf import distributed
from tasks.params.loading import ParamsError, RunParams, load_params
from tasks.params.redaction import redact
from tasks.running.meeting import require_place
from tasks.running.outcome import EXIT_CODES, StageEnd, Status
from tasks.running.snapshot import Snapshot
from tasks.running.stage import Stage
from tasks.workspace.accelerators import sole_accelerator
from tasks.workspace.dvc_definition import Definition


class ComputedError(Exception):
    """Ends the body of a stage in a process that has computed its share and writes nothing."""


class FirstStage(Stage):
    """The stage in the first of its processes, which does all that a stage does."""

    own_errors: Mapping[type[Exception], Status] = {distributed.LostProcessError: "failed"}

    def go_on_alone(self) -> None:
        """Leave the others, which end here."""
        distributed.leave()


class OtherStage(Stage):
    """The stage in another process: its metrics go nowhere, and it has no outputs."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep them in memory alone."""
        self.history.append({"step": step, **metrics})

    def remove_earlier(self, *names: str) -> None:
        """Leave it to the first process."""

    def go_on_alone(self) -> None:
        """End.

        Raises:
            ComputedError: always.
        """
        raise ComputedError


def meet(run: RunParams) -> None:
    """Wait for the other processes of the stage.

    Raises:
        StageEnd: they have ended, or not all of them have a GPU.
    """
    try:
        distributed.join(cuda=run.device != "cpu" and torch.cuda.is_available())
    except distributed.LostProcessError as error:
        raise StageEnd("failed", str(error)) from None
    except distributed.UnlikeProcessesError as error:
        raise StageEnd("bad_input", str(error)) from None


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage's processes run."""

    section_name: str
    stage_name: str
    round_key: str | None
    inputs: Sequence[str]
    body: Callable[[Stage], None]


def compute(work: Work, known: Mapping[type[Exception], Status]) -> int:
    """Run a stage's body in a process that is not the first.

    It ends with 0 whenever the first process sees the same end, or will see that this one is gone;
    the launcher would end all of them for any other code, before the first could say why.
    """
    reasons: tuple[type[Exception], ...] = (StageEnd, *known)
    run = load_params(Path("params.yaml")).run
    with sole_accelerator(run.device):
        screen = _silenced()
        try:
            require_place()
        except ParamsError as error:  # The first process may have no reason to end.
            if os.environ.get("LOCAL_RANK", "0") == "0":
                os.write(screen, f"{error}\n".encode())
            return EXIT_CODES["bad_input"]
        try:
            meet(run)
            # Now the first process has taken its snapshot, so it would notice any later edit.
            params = load_params(Path("params.yaml"))
            snapshot = Snapshot(work.stage_name, Definition("", (), (), ()), {}, {}, "")
            stage = OtherStage(snapshot, work.section_name, work.round_key, params, work.inputs)
            with stage.signals.heard():
                work.body(stage)
        except (ComputedError, KeyboardInterrupt, distributed.LostProcessError):
            return 0
        except reasons as error:
            # It may be that of this host alone, such as a folder that only the others see.
            distributed.give_reason(redact(str(error)))
            return 0
        except Exception:
            os.write(screen, redact(traceback.format_exc()).encode())
            return EXIT_CODES["failed"]
    return 0


def _silenced() -> int:
    """Let stderr go nowhere, whoever writes there; a descriptor of what it was."""
    screen = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    return screen
