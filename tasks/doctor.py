"""`python -m tasks.doctor [--fix]` (`make doctor`): what is unfinished or inconsistent here.

Checks for stages that died silently, stale locks, folders of unfinished outputs, damaged
checkpoints, metrics that have not arrived in MLflow, false entries of `dvc.lock`, damaged objects
in DVC's cache and outputs that differ from `dvc.lock`. With `--fix` it applies every fix that
cannot lose anything; for the rest it names the command. Exits 0 when nothing is left to do, 1
otherwise.
"""

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rlhf.manifests import DamagedError
from tasks.running.provenance import false_entries
from tasks.running.staging import clear_draft, drafts, verify_checkpoint
from tasks.tracking.shipping import ShipResult, has_news, ship_all, tracking_uri
from tasks.tracking.spools import spools
from tasks.workspace.dvc_cache import cache_folder, damaged_objects, differing_outputs, sound_files
from tasks.workspace.dvc_rwlock import clear_stale
from tasks.workspace.work_folder import RUNNING, checkpoint_folders, newest_checkpoint, read_running
from tasks.workspace.worktrees import workspaces


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    problem: str
    fix: Callable[[], str] | None = None
    """Fixes it without losing anything and says how; None where a person has to decide."""
    remedy: str = ""
    """The command for a person to run, where there is no `fix`."""


def examine(root: Path) -> Iterator[Finding]:
    """Every problem in a workspace."""
    yield from _dead_stages(root)
    yield from _locks(root)
    yield from _unfinished_outputs(root)
    yield from _damaged_checkpoints(root)
    yield from _unsent(root)
    yield from _false_entries(root)
    yield from _objects(root)
    yield from _outputs(root)


def notes(root: Path) -> Iterator[str]:
    """Unfinished work and missing outputs that are no problem: the next run deals with them."""
    for work in _works(root):
        if (path := newest_checkpoint(work)) is not None:
            step = int(path.name.removeprefix("step-"))
            yield f"{work.name} is unfinished: the next run resumes from step {step}"
    missing = [path for path, problem in differing_outputs(root) if problem == "missing"]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        get = "dvc pull, dvc checkout or make repro"
        yield f"in dvc.lock, but not here: {missing[0]}{more} (to get them: {get})"


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.doctor", description=__doc__.partition("\n")[2]
    )
    parser.add_argument("--fix", action="store_true", help="apply the safe fixes")
    fix: bool = parser.parse_args(argv).fix
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    root = Path.cwd()
    # Variants have folders of their own, but share the MLflow of the main checkout.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    left = fixed = 0
    for workspace in (root, *workspaces(root)):
        for finding in examine(workspace):
            how = _fix(finding) if fix else None
            fixed, left = fixed + (how is not None), left + (how is None)
            remedy = finding.remedy or "make doctor FIX=1"
            sys.stdout.write(
                f"fixed  {finding.problem}: {how}\n"
                if how is not None
                else f"left   {finding.problem}: {remedy}\n"
            )
        for note in notes(workspace):
            sys.stdout.write(f"note   {note}\n")
    sys.stdout.write(f"{fixed} fixed, {left} left.\n" if fixed or left else "All is well.\n")
    return 1 if left else 0


def _fix(finding: Finding) -> str | None:
    if finding.fix is None:
        return None
    try:
        return finding.fix()
    except OSError as error:
        sys.stderr.write(f"{finding.problem}: {error}\n")
        return None


def _works(root: Path) -> list[Path]:
    """The working folders of stages that are not running."""
    alive = {running.stage for running in read_running(root) if running.alive}
    folders = (path for path in sorted((root / ".work").glob("*")) if path.is_dir())
    others = {"spool", "mlflow", "variants", "verify", "prefect", *alive}
    return [path for path in folders if path.name not in others]


def _dead_stages(root: Path) -> Iterator[Finding]:
    for running in read_running(root):
        if not running.alive:
            path = root / ".work" / running.stage / RUNNING
            yield Finding(
                f"{running.stage} died silently (process {running.pid})",
                partial(_remove, path, "recorded; run it again to resume"),
            )


def _locks(root: Path) -> Iterator[Finding]:
    for problem in clear_stale(root, remove=False):
        yield Finding(problem, partial(_clear, root))


def _unfinished_outputs(root: Path) -> Iterator[Finding]:
    for work in _works(root):
        folders = [work / "staging", *(path / ".staging" for path in checkpoint_folders(work))]
        for path in folders:
            if path.is_dir():
                yield Finding(
                    f"{path.relative_to(root)}: never finished",
                    partial(_remove, path, "removed"),
                )
    # A running stage still needs its own.
    at_work = any(running.alive for running in read_running(root))
    for path in [] if at_work else drafts(root):
        yield Finding(f"{path.relative_to(root)}: never finished", partial(_clear_draft, path))


def _damaged_checkpoints(root: Path) -> Iterator[Finding]:
    for work in _works(root):
        for path in sorted(work.glob("*/step-*")):
            try:
                verify_checkpoint(path)
            except DamagedError as error:
                yield Finding(str(error), partial(_remove, path, "removed; an older one is used"))


def _unsent(root: Path) -> Iterator[Finding]:
    waiting = [folder for folder in spools(root) if has_news(folder)]
    if waiting:
        names = ", ".join(sorted({folder.parent.name for folder in waiting}))
        yield Finding(
            f"{len(waiting)} runs are not complete in MLflow, or shown as running: {names}",
            partial(_send, root),
        )


def _false_entries(root: Path) -> Iterator[Finding]:
    for entry in false_entries(root):
        yield Finding(str(entry), partial(entry.fix, root))


def _objects(root: Path) -> Iterator[Finding]:
    good: dict[str, Path] | None = None
    for damaged in damaged_objects(cache_folder(root)):
        good = sound_files(root) if good is None else good
        yield Finding(
            f"{damaged.path}: expected md5 {damaged.expected}, found {damaged.found}",
            partial(damaged.fix, good),
        )


def _outputs(root: Path) -> Iterator[Finding]:
    for path, problem in differing_outputs(root):
        if problem != "missing":
            yield Finding(
                f"{path}: differs from dvc.lock: {problem}",
                remedy=f"dvc checkout --force {path} (or dvc commit, if the change was intended)",
            )


def _clear(root: Path) -> str:
    clear_stale(root)
    return "removed"


def _clear_draft(path: Path) -> str:
    clear_draft(path)
    return "removed"


def _remove(path: Path, how: str) -> str:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return how


def _send(root: Path) -> str:
    results: list[ShipResult] = ship_all(root)
    troubles = [result.detail for result in results if result.state in ("refused", "unreachable")]
    if troubles:
        raise OSError(troubles[0])
    return "sent"


if __name__ == "__main__":
    sys.exit(main())
