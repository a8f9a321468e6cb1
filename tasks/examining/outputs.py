"""What `dvc.lock` says of outputs, what is here, and what DVC's caches have of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from preferences.withdrawals import WithdrawalsError
from tasks.examining.finding import Finding
from tasks.running.amounts import amount
from tasks.running.provenance import false_entries
from tasks.workspace.driver_lock import LOCK_FILE
from tasks.workspace.dvc_cache import (
    DifferingOutput,
    cache_folder,
    damaged_objects,
    differing_outputs,
    is_sound,
    sound_files,
)
from tasks.workspace.dvc_lockfile import DamagedLockError
from tasks.workspace.execution import last_execution
from tasks.workspace.held import is_held
from tasks.workspace.withdrawn import LOG, commit_that_knows_more, objects_back, outputs_withdrawn
from tasks.workspace.work_folder import read_running
from tasks.workspace.worktrees import Place


@dataclass
class Outputs:
    """The outputs of a workspace, which are hashed once."""

    place: Place

    @cached_property
    def differing(self) -> list[DifferingOutput] | None:
        """Those that are not as `dvc.lock` says; None beside a run at work, which changes them.

        Raises:
            DamagedLockError: dvc.lock cannot be read.
        """
        return None if _at_work(self.place) else list(differing_outputs(self.place.folder))


def examine_outputs(outputs: Outputs) -> Iterator[Finding]:
    """False entries of a workspace's `dvc.lock`, and outputs that differ from theirs."""
    place = outputs.place
    try:
        for entry in false_entries(place.folder):
            yield Finding(str(entry), partial(entry.fix, place.folder))
        yield from _differing(place, outputs.differing or ())
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


def missing(outputs: Outputs) -> Iterator[str]:
    """Notes on outputs that are not here, or have something that was withdrawn."""
    place, root = outputs.place, outputs.place.folder
    try:
        differing, withdrawn = outputs.differing, outputs_withdrawn(root)
    except (DamagedLockError, WithdrawalsError):  # A problem, which `examine_outputs` names.
        return
    if differing is None:
        yield "a run is at work: its outputs were not compared with dvc.lock"
        differing = []
    left = [out for out in differing if out.expected in withdrawn]
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
            f"DVC's cache has {amount(len(back), 'object')} that {LOG} names as removed, here or "
            "in another clone: the same python -m tasks.forget removes them here"
        )
    gone = [out for out in differing if out.found is None and out not in left]
    if gone and _came_to_no_end(place):
        yield f"the run has not come to its end and does not have {_first(gone)}: it goes on there"
    elif gone:
        get = again if left else f"{place.enter}dvc pull, dvc checkout or {place.run}"
        yield f"in dvc.lock, but not here: {_first(gone)} (to get them: {get})"


def _at_work(place: Place) -> bool:
    # A bare `dvc repro` does not hold the workspace.
    by_itself = any(running.alive for running in read_running(place.folder))
    return by_itself or is_held(place.folder / LOCK_FILE)


def _came_to_no_end(place: Place) -> bool:
    """Whether entries of a workspace's `dvc.lock` may still be those of its checkout."""
    last = last_execution(place.folder)
    return bool(place.name) and last is not None and last.unfinished


def _differing(place: Place, differing: Iterable[DifferingOutput]) -> Iterator[Finding]:
    cache, withdrawn = cache_folder(place.folder), outputs_withdrawn(place.folder)
    for out in differing:
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


def _first(outs: Sequence[DifferingOutput]) -> str:
    return outs[0].path + (f" and {len(outs) - 1} more" if len(outs) > 1 else "")
