"""Stages that died silently, and what unfinished ones have left."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rlhf.manifests import DamagedError
from tasks.examining.finding import Finding, clear, remove
from tasks.running.provenance import RECORD
from tasks.running.staging import clear_draft, drafts, verify_checkpoint
from tasks.workspace.dvc_rwlock import clear_stale
from tasks.workspace.execution import EXECUTION_FILE
from tasks.workspace.files import DamagedNoteError, read_json
from tasks.workspace.work_folder import (
    RUNNING,
    checkpoint_folders,
    idle_stages,
    newest_checkpoint,
    read_running,
)


def examine_stages(root: Path) -> Iterator[Finding]:
    """Dead stages, stale locks, outputs that were never finished, and damaged checkpoints."""
    yield from _dead_stages(root)
    yield from _locks(root)
    yield from _unfinished_outputs(root)
    yield from _damaged_checkpoints(root)


def examine_notes(root: Path) -> Iterator[Finding]:
    """Damaged notes: nothing else can be told of a workspace as long as it has one."""
    for path, without in (
        (root / EXECUTION_FILE, "removed; the next run begins a new execution"),
        *((one, "removed") for one in sorted((root / ".work").glob("*/outcome.json"))),
        *(
            (one, "removed; dvc.lock is believed about that stage")
            for one in sorted((root / ".work").glob(f"*/{RECORD}"))
        ),
    ):
        try:
            read_json(path)
        except DamagedNoteError:
            yield Finding(f"{path.relative_to(root)}: damaged", partial(remove, path, without))


def unfinished(root: Path) -> Iterator[str]:
    """Notes on stages that resume."""
    for work in idle_stages(root):
        if (path := newest_checkpoint(work)) is not None:
            step = int(path.name.removeprefix("step-"))
            same = "a run of the same params, inputs and code"
            yield f"{work.name} is unfinished: {same} resumes from step {step}"


def _dead_stages(root: Path) -> Iterator[Finding]:
    for running in read_running(root):
        if not running.alive:
            path = root / ".work" / running.stage / RUNNING
            yield Finding(
                f"{running.stage} died silently (process {running.pid})",
                partial(remove, path, "recorded; run it again to resume"),
            )


def _locks(root: Path) -> Iterator[Finding]:
    for problem in clear_stale(root, remove=False):
        yield Finding(problem, partial(clear, clear_stale, root))


def _unfinished_outputs(root: Path) -> Iterator[Finding]:
    for work in idle_stages(root):
        folders = [work / "staging", *(path / ".staging" for path in checkpoint_folders(work))]
        for path in folders:
            if path.is_dir():
                yield Finding(
                    f"{path.relative_to(root)}: never finished",
                    partial(remove, path, "removed"),
                )
    # A running stage still needs its own.
    at_work = any(running.alive for running in read_running(root))
    for path in [] if at_work else drafts(root):
        yield Finding(
            f"{path.relative_to(root)}: never finished", partial(clear, clear_draft, path)
        )


def _damaged_checkpoints(root: Path) -> Iterator[Finding]:
    for work in idle_stages(root):
        for path in sorted(work.glob("*/step-*")):
            try:
                verify_checkpoint(path)
            except DamagedError as error:
                yield Finding(str(error), partial(remove, path, "removed; an older one is used"))
