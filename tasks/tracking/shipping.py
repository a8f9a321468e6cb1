"""Sends spools to MLflow, beside the work or afterwards, and repeats until everything arrived.

Shipping is idempotent: `sent.json` records what arrived, and if it or a reply is lost, the run is
found by its tag and MLflow drops points that it already has (a point is its key, step, time and
value). One spool is shipped by one process at a time (a kernel lock); processes
that ship different spools of one execution agree on the parent run by a lock as well.

Importing this module costs nothing: MLflow (1.5 seconds) is imported by the first spool that has
something to send, in the thread that sends it.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tasks.params.redaction import redact
from tasks.tracking.sent import CURVES, DEFAULT_STORE, end_is_new, load_sent, rounds_are_new
from tasks.tracking.spool import is_live, read_finish
from tasks.tracking.spools import executions, spools
from tasks.workspace.files import home
from tasks.workspace.held import take

MLFLOW_SETTINGS = {
    # An unreachable server costs seconds, not the four minutes of the defaults.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

LOCAL_SECONDS, SERVER_SECONDS = 60.0, 10.0
STILL_NS = 1_000_000_000
"""A folder that changed less long ago is looked at again: clocks of files are coarse."""

State = Literal["complete", "open", "busy", "refused", "unreachable"]


@dataclass(frozen=True, slots=True)
class ShipResult:
    """The outcome of shipping one spool."""

    folder: Path
    state: State
    """complete: everything has arrived. open: everything so far; more will come (the stage is still
    running, or its models are left to `make sync`). busy: another process is shipping it. refused:
    MLflow rejects this one, or a file of it is damaged. unreachable: MLflow cannot be reached at
    present.
    """
    detail: str = ""
    """Why it did not arrive, one line."""


def tracking_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI`, or a SQLite file below the repository root.

    The path of such a file is absolute: a store has one name, and what it holds is sent once.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given and not given.startswith("sqlite:///"):
        return given
    path = given.removeprefix("sqlite:///") if given else home(root) / DEFAULT_STORE
    return f"sqlite:///{Path(path).resolve()}"


def deadline_seconds(root: Path) -> float:
    """How long a stage that has ended waits for its last words to arrive.

    A file on this machine is slow at worst: MLflow has to be imported, the store to be made. A
    server may be away; each stage would wait for it.
    """
    return LOCAL_SECONDS if tracking_uri(root).startswith("sqlite:") else SERVER_SECONDS


def quiet_mlflow() -> None:
    """Settings that MLflow reads from the environment when it is imported."""
    for name, value in MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)
    # Not a default: no setting of the user's may make a model file run code here.
    os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"


def ship(folder: Path, *, models: bool = True) -> ShipResult:
    """Send what is new in one spool. Never raises because of MLflow, the network or its content.

    Args:
        folder: `.work/spool/<stage>/<id>`.
        models: also log models; without, a finished spool that has some stays open.
    """
    try:
        if not _news(folder, models=models):
            return ShipResult(folder, _rest(folder))
        with _only_shipper(folder) as mine:
            if not mine:
                return ShipResult(folder, "busy")
            uri = tracking_uri(_root_of(folder))
            return _attempt(folder, lambda: _send(folder, uri, models=models))
    except ValueError as error:
        return _unreadable(folder, error)


def ship_all(
    root: Path, *, models: bool = True, settled: dict[Path, int] | None = None
) -> list[ShipResult]:
    """Ship all spools, then all executions; stop where MLflow is unreachable.

    Args:
        root: the workspace.
        models: as in `ship`.
        settled: when folders changed last from which all had arrived, filled here. Whoever calls
            this again and again gives it back: those of former runs are not read anew each time.
    """
    known: dict[Path, int] = {} if settled is None else settled
    results = []
    for folder in spools(root):
        # A stage that goes on in a spool takes its finish.json away; without one, nothing shows it.
        done = (folder / "finish.json").exists()
        shipped = partial(ship, folder, models=models)
        results.append(_unless_settled(folder, shipped, known) if done else shipped())
        if results[-1].state == "unreachable":
            return results
    # After their stages: the last word on how a parent run ended is the execution's.
    for folder in executions(root):
        results.append(_unless_settled(folder, partial(ship_execution, folder), known))
        if results[-1].state == "unreachable":
            return results
    return results


def _unless_settled(
    folder: Path, shipped: Callable[[], ShipResult], settled: dict[Path, int]
) -> ShipResult:
    """Ship a folder, unless nothing was put into it or replaced there since all had arrived."""
    changed = folder.stat().st_mtime_ns
    if settled.get(folder) == changed:
        return ShipResult(folder, "complete")
    result = shipped()
    if result.state == "complete" and time.time_ns() - changed > STILL_NS:
        settled[folder] = changed
    return result


def ship_execution(folder: Path) -> ShipResult:
    """Send what the execution in `.work/executions/<id>` has come to, if that is new."""
    uri = tracking_uri(folder.parents[2])
    try:
        if not execution_has_news(folder):
            return ShipResult(folder, "complete")
        with _only_shipper(folder) as mine:
            if not mine:
                return ShipResult(folder, "busy")
            return _attempt(folder, lambda: _send_execution(folder, uri))
    except ValueError as error:
        return _unreadable(folder, error)


def has_news(folder: Path) -> bool:
    """Whether the spool of a stage that is not running holds anything new for MLflow."""
    return not is_live(folder) and _news(folder, models=True)


def execution_has_news(folder: Path) -> bool:
    """Whether what the execution in `.work/executions/<id>` has come to is new for MLflow."""
    sent = load_sent(folder, tracking_uri(folder.parents[2]))
    return rounds_are_new(folder, sent) or end_is_new(folder, sent)


# The two that know MLflow import it: 1.5 s that no stage's main thread should wait for.


def _send(folder: Path, uri: str, *, models: bool) -> State:
    from tasks.tracking.send import send  # noqa: PLC0415

    send(folder, uri=uri, models=models)
    return _rest(folder)


def _send_execution(folder: Path, uri: str) -> State:
    from tasks.tracking.send import send_execution  # noqa: PLC0415

    send_execution(folder, uri=uri)
    return "complete"


def _attempt(folder: Path, sending: Callable[[], State]) -> ShipResult:
    """Send part of `folder`; returns the outcome."""
    quiet_mlflow()
    from tasks.tracking.send import TrackingError  # noqa: PLC0415

    try:
        return ShipResult(folder, sending())
    except TrackingError as error:
        state: State = "refused" if error.refused else "unreachable"
        return ShipResult(folder, state, str(error))


def _unreadable(folder: Path, error: ValueError) -> ShipResult:
    """A damaged file in this folder, such as rows that are not JSON; others are sound."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ShipResult(folder, "refused", redact(f"{folder}: cannot be read ({reason})"))


@contextmanager
def _only_shipper(folder: Path) -> Iterator[bool]:
    if (lock := take(folder / "ship.lock")) is None:
        yield False
        return
    with lock:
        yield True


def _news(folder: Path, *, models: bool) -> bool:
    """Whether anything in the spool has not arrived yet. Reads two small files at most."""
    sent = load_sent(folder, tracking_uri(_root_of(folder)))
    if not sent.described or any(
        _more(folder / f"{one}.jsonl", getattr(sent, one)) for one in CURVES
    ):
        return True
    finish = read_finish(folder)
    if finish is None:
        return sent.status != ("RUNNING" if is_live(folder) else "KILLED")
    return finish["ended_ms"] != sent.ended_ms or (models and not sent.models_done)


def _more(path: Path, sent: int) -> bool:
    return path.exists() and path.stat().st_size > sent


def _rest(folder: Path) -> State:
    """What remains after everything that could be sent has been."""
    if read_finish(folder) is None:
        return "open" if is_live(folder) else "complete"
    sent = load_sent(folder, tracking_uri(_root_of(folder)))
    return "complete" if sent.models_done else "open"


def _root_of(folder: Path) -> Path:
    """The workspace of `<root>/.work/spool/<stage>/<id>`."""
    return folder.parents[3]
