"""`python -m tasks.doctor [--fix]` (`make doctor`): what is unfinished or inconsistent here.

Checks params.yaml, and for stages that died silently, stale locks, folders of unfinished outputs,
damaged checkpoints, a damaged store of MLflow and metrics that have not arrived there, false
entries of `dvc.lock`, damaged objects in DVC's cache and outputs that differ from it. What is in
the workspace of a variant or run begins with its folder. With `--fix` it applies every fix that
cannot lose anything; for the rest it names the command. Exits 0 when nothing is left to do, 2
outside a repository, 1 otherwise.
"""

import argparse
import logging
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from preferences.withdrawals import WithdrawalsError
from rlhf.manifests import DamagedError
from tasks.params.loading import ParamsError, load_params
from tasks.running.machine_errors import in_one_line
from tasks.running.provenance import false_entries
from tasks.running.staging import clear_draft, drafts, verify_checkpoint
from tasks.tracking.sent import damage
from tasks.tracking.shipping import (
    execution_has_news,
    has_news,
    ship_all,
    tracking_uri,
)
from tasks.tracking.spools import executions, spools
from tasks.workspace.dvc_cache import (
    cache_folder,
    damaged_objects,
    differing_outputs,
    is_sound,
    sound_files,
)
from tasks.workspace.dvc_lockfile import DamagedLockError
from tasks.workspace.dvc_rwlock import clear_stale
from tasks.workspace.files import outside_repository
from tasks.workspace.withdrawn import LOG, commit_that_knows_more, objects_back, outputs_withdrawn
from tasks.workspace.work_folder import (
    RUNNING,
    checkpoint_folders,
    idle_stages,
    newest_checkpoint,
    read_running,
)
from tasks.workspace.worktrees import Place, workspaces


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    problem: str
    fix: Callable[[], str] | None = None
    """Fixes it without losing anything and says how; None where a person has to decide."""
    remedy: str = ""
    """The command for a person to run, where there is no `fix`."""


def examine(place: Place) -> Iterator[Finding]:
    """Every problem in a workspace, but for those of DVC's cache, which several may share."""
    root = place.folder
    yield from _dead_stages(root)
    yield from _locks(root)
    yield from _unfinished_outputs(root)
    yield from _damaged_checkpoints(root)
    yield from _unsent(root)
    try:
        load_params(root / "params.yaml")
    except ParamsError as error:
        yield Finding(" ".join(str(error).splitlines()), remedy=f"mend {place.params}")
    try:
        yield from _false_entries(root)
        yield from _outputs(place)
    except DamagedLockError as error:
        yield Finding(str(error), remedy=f"{place.enter}git checkout HEAD -- dvc.lock")
    except WithdrawalsError as error:
        yield Finding(str(error), remedy="mend it; git has what has been committed of it")


def examine_caches(folders: Sequence[Path]) -> Iterator[Finding]:
    """Damaged objects in the caches of workspaces, each once; a sound copy may lie in any."""
    good: dict[str, Path] | None = None
    caches = {cache_folder(folder).resolve(): cache_folder(folder) for folder in reversed(folders)}
    for cache in caches.values():
        for damaged in damaged_objects(cache):
            if good is None:
                good = {md5: file for one in folders for md5, file in sound_files(one).items()}
            yield Finding(
                f"{damaged.path}: expected md5 {damaged.expected}, found {damaged.found}",
                partial(damaged.fix, good),
            )


def notes(place: Place) -> Iterator[str]:
    """Unfinished work and missing outputs that are no problem: the next run deals with them."""
    root = place.folder
    for work in idle_stages(root):
        if (path := newest_checkpoint(work)) is not None:
            step = int(path.name.removeprefix("step-"))
            same = "a run of the same params, inputs and code"
            yield f"{work.name} is unfinished: {same} resumes from step {step}"
    try:
        differing, withdrawn = list(differing_outputs(root)), outputs_withdrawn(root)
    except (DamagedLockError, WithdrawalsError):  # A problem, which `examine` names.
        return
    left = [out.path for out in differing if out.expected in withdrawn]
    # A bare `dvc repro` in a workspace does not bring the tombstones there.
    again = "the next run" if place.name else place.run
    if left and not place.name and (commit := commit_that_knows_more(root)):
        again = f"git checkout {commit} -- data/withdrawn, then {again}"
    if left:
        yield (
            f"something was withdrawn from {_first(left)}: {again} makes that anew "
            "(a dvc pull before may bring back what was withdrawn)"
        )
    # The others share the cache of the checkout.
    if not place.name and (back := objects_back(root)):
        yield (
            f"DVC's cache has {len(back)} objects that {LOG} names as removed, here or in another "
            "clone: the same python -m tasks.forget removes them here"
        )
    missing = [out.path for out in differing if out.found is None and out.path not in left]
    if missing:
        get = again if left else f"{place.enter}dvc pull, dvc checkout or {place.run}"
        yield f"in dvc.lock, but not here: {_first(missing)} (to get them: {get})"


@in_one_line
def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.doctor", description=__doc__.partition("\n")[2]
    )
    parser.add_argument("--fix", action="store_true", help="apply the safe fixes")
    fix: bool = parser.parse_args(argv).fix
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    root = Path.cwd()
    if problem := outside_repository(root):
        sys.stderr.write(f"{problem}\n")
        return 2
    # Variants have folders of their own, but share the MLflow of the main checkout.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    places = [Place(root), *(Place(one, str(one.relative_to(root))) for one in workspaces(root))]
    tally = Counter(_report(_damaged_store(root), "", fix=fix))
    tally.update(_report(examine_caches([one.folder for one in places]), "", fix=fix))
    for place in places:
        tally.update(_report(examine(place), place.before, fix=fix))
        for note in notes(place):
            sys.stdout.write(f"note   {place.before}{note}\n")
    fixed, left = tally[True], tally[False]
    sys.stdout.write(f"{fixed} fixed, {left} left.\n" if fixed or left else "All is well.\n")
    return 1 if left else 0


def _report(findings: Iterable[Finding], before: str, *, fix: bool) -> Iterator[bool]:
    """Fix what may be fixed, and say so; whether each finding is fixed."""
    for finding in findings:
        how, remedy = _fix(finding) if fix else None, finding.remedy or "make doctor FIX=1"
        sys.stdout.write(
            f"fixed  {before}{finding.problem}: {how}\n"
            if how is not None
            else f"left   {before}{finding.problem}: {remedy}\n"
        )
        yield how is not None


def _fix(finding: Finding) -> str | None:
    if finding.fix is None:
        return None
    try:
        return finding.fix()
    except OSError as error:
        sys.stderr.write(f"{finding.problem}: {error}\n")
        return None


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
        yield Finding(problem, partial(_clear, clear_stale, root))


def _unfinished_outputs(root: Path) -> Iterator[Finding]:
    for work in idle_stages(root):
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
        yield Finding(
            f"{path.relative_to(root)}: never finished", partial(_clear, clear_draft, path)
        )


def _damaged_checkpoints(root: Path) -> Iterator[Finding]:
    for work in idle_stages(root):
        for path in sorted(work.glob("*/step-*")):
            try:
                verify_checkpoint(path)
            except DamagedError as error:
                yield Finding(str(error), partial(_remove, path, "removed; an older one is used"))


def _damaged_store(root: Path) -> Iterator[Finding]:
    if problem := damage(tracking_uri(root)):
        yield Finding(
            problem, remedy="put a copy of it back, or move it away and run make sync, which sends "
            "every run again (decisions about promotions are in it alone)",
        )  # fmt: skip


def _unsent(root: Path) -> Iterator[Finding]:
    waiting = [folder for folder in spools(root) if has_news(folder)]
    if waiting:
        names = ", ".join(sorted({folder.parent.name for folder in waiting}))
        yield Finding(
            f"{len(waiting)} runs are not complete in MLflow, or shown as running: {names}",
            partial(_send, root),
        )
    # A driver at work sends its own.
    at_work = any(running.alive for running in read_running(root))
    unsent = [] if at_work else [one for one in executions(root) if execution_has_news(one)]
    if unsent:
        names = ", ".join(folder.name for folder in unsent)
        yield Finding(
            f"{len(unsent)} executions are not complete in MLflow: {names}", partial(_send, root)
        )


def _false_entries(root: Path) -> Iterator[Finding]:
    for entry in false_entries(root):
        yield Finding(str(entry), partial(entry.fix, root))


def _outputs(place: Place) -> Iterator[Finding]:
    cache, withdrawn = cache_folder(place.folder), outputs_withdrawn(place.folder)
    for out in differing_outputs(place.folder):
        if out.found is not None and out.expected not in withdrawn:
            # A checkout would take what is not there, or is damaged, too.
            sound = is_sound(cache, out.expected)
            get = (
                f"dvc checkout --force {out.path}"
                if sound
                else f"dvc pull {out.path} or {place.run}"
            )
            yield Finding(
                f"{out.path}: differs from dvc.lock: expected md5 {out.expected}, "
                f"found {out.found}",
                remedy=f"{place.enter}{get} (or dvc commit, if the change was intended)",
            )


def _first(paths: Sequence[str]) -> str:
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _clear(clear: Callable[[Path], object], folder: Path) -> str:
    clear(folder)
    return "removed"


def _remove(path: Path, how: str) -> str:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return how


def _send(root: Path) -> str:
    lost = ("refused", "unreachable")
    troubles = [result.detail for result in ship_all(root) if result.state in lost]
    if troubles:
        raise OSError(troubles[0])
    return "sent"


if __name__ == "__main__":
    sys.exit(main())
