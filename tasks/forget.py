"""`python -m tasks.forget`: withdraws an annotator, a source, a prompt or a person's data.

Searches the labelling store, all outputs and working files of this checkout, its variants and the
runs ordered in Prefect, your own files, and DVC's cache; shows what must go, which stages the next
run makes anew in each of these places, and which models contain it. With `--yes` it removes that,
marks the models in MLflow, and notes tombstones (salted hashes, in data/withdrawn/) that keep it
out of every later run, also of one that goes on or is of an older revision.
data/withdrawn/log.jsonl says what was removed and when, without containing it. Exit codes: 0, 2 bad
input, 5 where own files are left to you, which have it or cannot be searched, 7 while a run is
going on here, 1 where MLflow cannot be told or the machine is at fault.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from feedback.store.database import shown
from tasks.forgetting.own_rows import OwnRowsError
from tasks.forgetting.plan import Again, Plan, make_plan
from tasks.forgetting.removal import MarkError, carry_out
from tasks.forgetting.wanted import KINDS, Wanted, WantedError, WantedKind
from tasks.params.loading import ParamsError
from tasks.running.amounts import amount
from tasks.running.machine_errors import in_one_line
from tasks.tracing.contents import ContentError, Contents
from tasks.tracing.records import RecordError, Records
from tasks.workspace.driver_lock import BUSY_EXIT_CODE, Driver, WorkspaceBusyError, sole_use
from tasks.workspace.files import relative_to
from tasks.workspace.git import GitError
from tasks.workspace.worktrees import WorkspaceError, workspaces

HEADINGS = {
    "cache": "DVC's cache",
    "output": "outputs",
    "work": "working files",
    "own": "rows of your own files",
}
LEFT_TO_YOU = 5
"""Exit code: what could be done is done, the rest waits for a person."""
BEYOND = (
    "Out of reach from here: git's history, DVC remotes and other clones, backups of the labelling "
    "store, the databases of MLflow and Prefect, artifacts on an MLflow server. A DVC remote has "
    "files/md5/AB/CDEF... of the hashes in data/withdrawn/log.jsonl until they are deleted there; "
    "until then `dvc pull` and `dvc fetch` bring them back. Clones that share this DVC cache lose "
    "the same objects from it, and have to make anew what they had in them."
)


@in_one_line
def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    given = _parser().parse_args(argv)
    asked: list[tuple[WantedKind, str | None]] = [(k, getattr(given, k)) for k in KINDS]
    ((kind, value),) = [(kind, value) for kind, value in asked if value is not None]
    root = Path.cwd()
    try:
        return _forget(root, Wanted(kind, value), yes=given.yes)
    except (
        WantedError, WorkspaceError, ParamsError, RecordError, ContentError, GitError,
        OwnRowsError,
    ) as error:  # fmt: skip
        sys.stderr.write(f"{error}\n")
        return 2
    except MarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except WorkspaceBusyError as error:
        sys.stderr.write(f"{error}\n")
        return BUSY_EXIT_CODE


def _forget(root: Path, wanted: Wanted, *, yes: bool) -> int:
    with ExitStack() as held:
        # A run that began meanwhile would write again what is removed here.
        for place in (root, *workspaces(root)) if yes else ():
            held.enter_context(sole_use(place, Driver(name="`python -m tasks.forget`")))
        plan = make_plan(root, wanted)
        sys.stdout.write("".join(f"{line}\n" for line in in_words(root, plan)))
        if plan.empty:
            return LEFT_TO_YOU if plan.not_searched else 0
        if not yes:
            sys.stdout.write("Nothing was changed; the same command with --yes does it.\n")
            return 0
        marked = carry_out(root, plan)
    if marked:
        sys.stdout.write(f"Marked in MLflow: {', '.join(marked)}.\n")
    sys.stdout.write(f"{last_line(root, plan)}\n")
    return LEFT_TO_YOU if plan.by_hand or plan.not_searched else 0


def last_line(root: Path, plan: Plan) -> str:
    """What is left to do after the plan was carried out."""
    left = ", ".join(relative_to(path, root) for path in (*plan.by_hand, *plan.not_searched))
    if left:
        return (
            f"Not done: own files are left to you ({left}). Edit them, commit data/withdrawn/, and "
            "run the pipeline; all else has none of it."
        )
    return "Done. Commit data/withdrawn/ and run the pipeline: what comes out has none of it."


def in_words(root: Path, plan: Plan) -> Iterator[str]:
    """What is found where, and what follows."""
    if plan.empty:
        missing = [one for one in plan.again if one.stages]
        more = " Not here, and so not searched, are outputs that will be made anew; ask again then:"
        where = "Nothing that can be searched here" if plan.not_searched else "Nothing here"
        yield f"{where} has it.{more if missing else ''}"
        yield from _not_searched(root, plan)
        for again in missing:
            yield from _again(root, again)
        return
    for url, found in plan.stores:
        rows = ", ".join(f"{number:,} {name}" for name, number in found.counts.items())
        name = shown(url) if "://" in url else relative_to(Path(url), root)
        yield f"labelling store {name}: {rows}"
    yield from _files(root, plan)
    for path in plan.by_hand:
        yield f"for you to edit (not JSON Lines, pinned, or all of it): {relative_to(path, root)}"
    yield from _not_searched(root, plan)
    for again in plan.again:
        yield from _again(root, again)
    if plan.models:
        yield f"models that contain it, of all commits ({len(plan.models)}):"
    yield from (f"  {model.path} (md5 {model.digest})" for model in plan.models)
    if plan.untraceable:
        yield "models whose data are not here, so that nobody can tell:"
    yield from (f"  {model.path} (md5 {model.digest})" for model in plan.untraceable)
    yield BEYOND


def _not_searched(root: Path, plan: Plan) -> Iterator[str]:
    for path in plan.not_searched:
        yield f"for you to search (packed, binary, a link, or not UTF-8): {relative_to(path, root)}"


def _again(root: Path, again: Again) -> Iterator[str]:
    run = "the next run"
    if again.place != root:
        run += f" in {relative_to(again.place, root)}"
    if again.stages:
        yield f"{run} makes anew: {', '.join(again.stages)}"
    if again.looking:
        yield f"{run} looks again, with the same result: {', '.join(again.looking)}"


def _files(root: Path, plan: Plan) -> Iterator[str]:
    names = _names(root)
    for place, heading in HEADINGS.items():
        files = [one for one in plan.files if one.place == place]
        if files:
            rows = amount(sum(one.rows for one in files), "row", ("has", "have"))
            size = sum(one.path.stat().st_size for one in files) / 1e6
            yield f"{heading}: {amount(len(files), 'file')}, {rows} it, {size:.1f} MB"
        for one in files:
            digest = one.path.parent.name + one.path.name
            name = names.get(digest, digest) if place == "cache" else relative_to(one.path, root)
            yield f"  {name}: {one.rows:,}"


def _names(root: Path) -> dict[str, str]:
    """md5 -> path of the outputs that dvc.lock names, where their folders can be listed."""
    contents = Contents(root)
    try:
        runs = Records(root, contents).now
    except RecordError:
        return {}
    found = {}
    for ran in runs:
        for path, digest in ran.outs.items():
            found[digest] = path
            found |= {
                md5: f"{path}/{name}" for name, md5 in contents.known_files(path, digest).items()
            }
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.forget", description=__doc__.partition("\n")[2]
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--annotator", metavar="NAME", help="all judgments of an annotator")
    what.add_argument(
        "--source",
        metavar="NAME",
        help="all of a data set in prepare.sources, or kind of annotator",
    )
    what.add_argument("--prompt", metavar="ID", help="a prompt, and what was said about it")
    what.add_argument(
        "--matching",
        metavar="PATTERN",
        help="every row with a text that a regular expression finds",
    )
    parser.add_argument("--yes", action="store_true", help="remove it; without this, only show it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
