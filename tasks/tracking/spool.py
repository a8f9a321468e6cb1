"""Everything meant for MLflow, written to local files first; writing needs no MLflow.

A stage opens a spool, logs metrics into it and finishes it. `tasks.tracking.shipping` sends spools
to MLflow beside the work or later, and retries. So a tracking server that is slow, down or never
set up costs a training step a few microseconds and loses nothing.

One spool is one folder, `.work/spool/<stage>/<id>/`:

    start.json     who runs, with which parameters and input hashes (written once)
    metrics.jsonl  one line per call of `log`: {"step", "time" (ms since 1970), "metrics"}
    system.jsonl   the same of `log_system`, whose steps are counted
    finish.json    how it ended and why, final metrics, outputs, DVC's hashes of all that it wrote
    outputs/       hard links to the outputs, so that a later run cannot remove them unsent
    lock           held while the stage lives, to distinguish a killed one from a slow one
    sent.json      what has arrived where (written by the shipper)

The id follows from stage, execution, parameters and input hashes. A stage that is killed and
resumed within one execution therefore continues in its folder and its MLflow run; what it repeats
after its last checkpoint is not logged twice.
"""

import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from rlhf.manifests import flush
from tasks.workspace.files import home, now_ms, read_json, relative_to, write_json
from tasks.workspace.held import is_held, take

Status = Literal["FINISHED", "FAILED", "KILLED", "SCHEDULED"]
"""MLflow's words for how something ended; scheduled: it waits for people, and goes on later."""
OutputKind = Literal["policy", "reward_model", "artifact"]

SPOOL_FOLDER = Path(".work") / "spool"
SYSTEM = "system.jsonl"
EXECUTIONS_FOLDER = Path(".work") / "executions"
"""The content of the parent runs: see `tasks.tracking.execution_record`."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """What is known of a stage before it starts."""

    stage: str
    """Name of the DVC stage, such as `ppo@r1`."""
    execution: str
    """Id of the pipeline execution that the stage belongs to: one MLflow parent run."""
    params: Mapping[str, object]
    """Flat, dotted: `{"ppo.kl_coef": 0.05}`."""
    inputs: Mapping[str, str]
    """Path below the repository root -> hash as DVC records it (md5, `.dir` for a folder)."""
    tags: Mapping[str, str]
    """Further tags of the run, such as `git.commit` and `round`. One called `fingerprint`, the
    name of the stage's checkpoint folder, makes the run of changed code a new one."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file or folder that the stage has published and that goes to MLflow."""

    kind: OutputKind
    path: Path
    """Below the repository root, absolute or relative to it."""


class Spool:
    """The open spool of a running stage. Made by `open_spool`; end it with `finish`."""

    def __init__(self, root: Path, folder: Path, lock: IO[str]) -> None:
        """Take over `folder`, whose `lock` the caller holds and this object releases."""
        self.folder = folder
        self._root = root
        self._lock = lock
        metrics = folder / "metrics.jsonl"
        self._seen = _trim_and_read(metrics)
        self._file = metrics.open("a", encoding="utf-8")
        before = _trim_and_read(folder / SYSTEM)
        self._system_step = 1 + max((step for step, _ in before), default=-1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line and hand it to the kernel; microseconds, no network, no waiting.

        After a resume, values that an earlier attempt logged at the same step are left out.
        """
        if self._seen:
            metrics = {k: v for k, v in metrics.items() if (step, k) not in self._seen}
            if not metrics:
                return
        self._file.write(_line(step, metrics))
        self._file.flush()

    def log_system(self, metrics: Mapping[str, float]) -> None:
        """Append a line of what the stage uses of the machine; a thread of its own may call it."""
        with (self.folder / SYSTEM).open("a", encoding="utf-8") as stream:
            stream.write(_line(self._system_step, metrics))
        self._system_step += 1

    def finish(
        self,
        status: Status,
        metrics: Mapping[str, float],
        outputs: Sequence[Output],
        message: str = "",
        hashes: Mapping[str, str] | None = None,
    ) -> None:
        """Record the end. Call it once, after publishing.

        Args:
            status: how MLflow shows it.
            metrics: final ones, that are no curve's.
            outputs: what goes to MLflow.
            message: why the stage failed, if it did.
            hashes: DVC's, of all that the stage has published; by them `tasks.tracking.spools`
                finds the run again.

        Raises:
            FileNotFoundError: an output does not exist.
        """
        self._file.close()
        for curve in filter(Path.exists, (self.folder / "metrics.jsonl", self.folder / SYSTEM)):
            flush(curve)  # The end, which is forced to the disk, says that they are whole.
        entries = [
            self._keep(number, output.kind, self._root / output.path)
            for number, output in enumerate(outputs)
        ]
        write_json(
            self.folder / "finish.json",
            {
                "status": status,
                "ended_ms": now_ms(),
                "metrics": dict(metrics),
                "outputs": entries,
                "message": message,
                "hashes": dict(hashes or {}),
            },
        )
        self._lock.close()

    def _keep(self, number: int, kind: OutputKind, source: Path) -> dict[str, str]:
        """Link an output below the spool and return its entry of finish.json."""
        kept = Path("outputs") / str(number) / source.name
        target = self.folder / kept
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir(parents=True)
        if source.is_dir():
            shutil.copytree(source, target, copy_function=link_or_copy)
        else:
            link_or_copy(source, target)
        return {"kind": kind, "path": relative_to(source, self._root), "kept": kept.as_posix()}


def open_spool(root: Path, start: RunStart) -> Spool:
    """A spool for this stage: the folder of the attempt that it resumes, or a new one.

    An attempt that finished, or that another live process holds, is left alone.
    """
    stage_folder = home(root) / SPOOL_FOLDER / start.stage
    for folder in _candidates(stage_folder, _identity(start)):
        folder.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(folder)
        if lock is None:
            continue
        if (finish := read_finish(folder)) and finish["status"] == "FINISHED":
            lock.close()
            continue
        (folder / "finish.json").unlink(missing_ok=True)
        if not (folder / "start.json").exists():
            record = {"schema": 1, "id": folder.name, "started_ms": now_ms(), **asdict(start)}
            write_json(folder / "start.json", record)
        return Spool(root, folder, lock)
    raise AssertionError("the candidates do not end")


def is_live(folder: Path) -> bool:
    """Whether the process that opened this spool still runs (the kernel keeps the lock)."""
    return is_held(folder / "lock")


def read_finish(folder: Path) -> dict[str, Any] | None:
    """The spool's finish.json, None while the stage has not ended (or was killed)."""
    return read_json(folder / "finish.json")


def _identity(start: RunStart) -> str:
    code = start.tags.get("fingerprint", "")
    parts = [start.stage, start.execution, dict(start.params), dict(start.inputs), code]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _candidates(stage_folder: Path, identity: str) -> Iterator[Path]:
    yield stage_folder / identity
    for attempt in itertools.count(2):
        yield stage_folder / f"{identity}-{attempt}"


def _take_lock(folder: Path) -> IO[str] | None:
    """The folder's lock; retries, since `is_live` holds it for an instant."""
    for _ in range(10):
        if (lock := take(folder / "lock")) is not None:
            return lock
        time.sleep(0.02)
    return None


def _line(step: int, metrics: Mapping[str, float]) -> str:
    line = {"step": step, "time": now_ms(), "metrics": dict(metrics)}
    return json.dumps(line, separators=(",", ":")) + "\n"


def _trim_and_read(metrics: Path) -> set[tuple[int, str]]:
    """Cut off a half-written last line and return the (step, key) pairs that are there."""
    if not metrics.exists():
        return set()
    content = metrics.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(metrics, len(whole))
    rows = [json.loads(line) for line in whole.splitlines()]
    return {(row["step"], key) for row in rows for key in row["metrics"]}


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard link, or copy where the file system has none (another device, some network mounts)."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
