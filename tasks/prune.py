"""`python -m tasks.prune` (`make prune`): frees the disk of what no kept run needs.

Kept are all commits of all branches and tags (`--tips`: only the newest of each branch, and tags),
experiments of `dvc exp run`, what is checked out, the variants that params/ still has, here or on a
branch, or that people have labelled for, and the runs of experiments that experiments/params/ still
has. The rest goes: objects of DVC's cache (by DVC itself; not of one outside of the checkout, and
without asking other clones that use this one's), checkpoints that no stage resumes from, drafts
that a kill has left, workspaces of other variants, the clone of `make verify`, and MLflow's copies
of models that are neither of a kept run nor in production, now or before. With `--runs` also the
workspaces of runs that were ordered in Prefect and have ended, if branch, tag, DVC's cache and
MLflow have all that is in them; says of the others why they stay. Says first what and how much;
removes it with `--yes`.
Exit codes: 0, 2 where DVC or git refuse, 7 while a run is going on here.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path

from tasks.pruning.finished import finished, run_workspaces
from tasks.pruning.finished import remove as remove_finished
from tasks.pruning.kept import has_strangers, kept_runs, only_stashed
from tasks.pruning.leftovers import (
    Cache,
    Leftover,
    PruneError,
    checkpoints,
    clones,
    drafts,
    forget_worktrees,
    kept_workspaces,
    staying_variants,
    variants,
)
from tasks.running.machine_errors import in_one_line
from tasks.tracing.contents import ContentError
from tasks.tracing.records import Ran, RecordError
from tasks.tracking.sent import DEFAULT_STORE
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.workspace.driver_lock import BUSY_EXIT_CODE, WorkspaceBusyError, refuse_if_busy
from tasks.workspace.dvc_cache import cache_folder
from tasks.workspace.files import outside_repository
from tasks.workspace.git import GitError
from tasks.workspace.worktrees import WorkspaceError, find_moved, none_begins, workspaces


@in_one_line
def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    given = _parser().parse_args(argv)
    root = Path.cwd()
    try:
        if problem := outside_repository(root):
            raise PruneError(problem)
        # DVC looks at all commits for minutes, and knows nothing of a workspace that is made then.
        with none_begins(root) if given.yes else nullcontext():
            return _prune(root, given)
    except (PruneError, GitError, WorkspaceError, RecordError, ContentError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except WorkspaceBusyError as error:
        sys.stderr.write(f"{error}\n")
        return BUSY_EXIT_CODE


def _prune(root: Path, given: argparse.Namespace) -> int:
    # Also before looking: what a run has written and not yet recorded looks like a leftover.
    for place in (root, *workspaces(root)):
        refuse_if_busy(place)
    # A run has sent its metrics to the checkout's MLflow.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    find_moved(root)
    ended, staying = finished(root) if given.runs else ([], {})
    going = [path for one in ended for path in one.paths]
    kept = [path for path in kept_workspaces(root) if path not in going]
    runs = list(kept_runs(root, [root, *kept], tips=given.tips))
    if stashed := only_stashed(root, runs):
        more = " and others" if len(stashed) > 1 else ""
        raise PruneError(
            f"git stash holds a run whose outputs would go ({stashed[0]}{more}): bring it back "
            "(git stash pop) and commit its dvc.lock, or drop it (git stash drop)"
        )
    cache = Cache(root, kept, dict(os.environ), tips=given.tips)
    objects = _objects(root, cache, runs, tips=given.tips)
    others = [
        *checkpoints(root, [root, *kept]), *drafts(root, [root, *kept]), *variants(root),
        *clones(root), *_copies(root, runs),
    ]  # fmt: skip
    _say([*objects, *others, *ended])
    for name, why in staying_variants(root).items():
        sys.stdout.write(f"stays: the variant {name}: {why}\n")
    _say_runs(root, staying if given.runs else None)
    if not given.yes:
        sys.stdout.write("Nothing was removed; `make prune YES=1` (or --yes) does it.\n")
        return 0
    remove_finished(root, ended)
    for one in others:
        one.remove()
    forget_worktrees(root)
    if objects:
        cache.collect()
    sys.stdout.write("Removed.\n")
    return 0


def _say(leftovers: list[Leftover]) -> None:
    total = 0
    for kind, group in groupby(leftovers, key=lambda one: one.kind):
        for one in group:
            size = one.size
            total += size
            sys.stdout.write(f"{kind}: {one.name}, {size / 1e6:.1f} MB\n")
    sys.stdout.write(f"{total / 1e6:.1f} MB in all that no kept run needs.\n")


def _say_runs(root: Path, staying: Mapping[str, str] | None) -> None:
    """Why those that were looked at stay; None of them: how much all take."""
    for name, why in (staying or {}).items():
        sys.stdout.write(f"stays: the run {name}: {why}\n")
    runs = Leftover("runs", "", tuple(run_workspaces(root)))
    if staying is None and (number := len(runs.paths)):
        size = runs.size / 1e6
        sys.stdout.write(
            f"Not counted: {number} workspace{'s' * (number > 1)} of runs, {size:.1f} MB; with "
            "--runs those that have ended go, too.\n"
        )


def _objects(root: Path, cache: Cache, runs: Sequence[Ran], *, tips: bool) -> list[Leftover]:
    folder = cache_folder(root).parents[1]
    if not folder.resolve().is_relative_to(root.resolve()):
        # Nobody here knows the commits of other clones whose outputs are in it, too.
        sys.stdout.write(
            f"DVC's cache {folder} lies outside of this checkout, and others may need what is in "
            "it: left as it is. `dvc gc --all-commits --projects CLONE ...` clears it up.\n"
        )
        return []
    if not tips:
        # DVC looks at every commit, which takes minutes; its cache has seldom more than they name.
        if not has_strangers(root, runs):
            return []
        sys.stderr.write("Asking DVC what every commit needs; minutes in a long history.\n")
    found = cache.leftover()
    if found.paths:
        sys.stdout.write(
            "Another clone that uses this cache is not known here: what only its commits need is "
            "among the objects.\n"
        )
    return [found] if found.paths else []


def _copies(root: Path, runs: Sequence[Ran]) -> list[Leftover]:
    # What a server keeps is for that server to clear up; a store elsewhere may have other
    # checkouts' models.
    uri, own = tracking_uri(root), (root / DEFAULT_STORE).resolve()
    if uri != f"sqlite:///{own}" or not own.exists():
        return []
    quiet_mlflow()
    # Imported here: they bring MLflow, which takes seconds.
    from tasks.pruning.mlflow_copies import copies  # noqa: PLC0415
    from tasks.tracking.store import connect  # noqa: PLC0415

    return list(copies(connect(uri), runs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.prune", description=__doc__.partition("\n")[2]
    )
    parser.add_argument(
        "--tips", action="store_true", help="keep only the newest commit of each branch, and tags"
    )
    parser.add_argument(
        "--runs", action="store_true", help="also the workspaces of runs that have ended"
    )
    parser.add_argument("--yes", action="store_true", help="remove it; without this, only show it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
