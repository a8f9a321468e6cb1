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
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from tasks.examining.finding import Finding
from tasks.examining.outputs import Outputs, examine_caches, examine_outputs, missing
from tasks.examining.stages import examine_notes, examine_stages, unfinished
from tasks.params.loading import ParamsError, load_params
from tasks.running.amounts import amount
from tasks.running.machine_errors import in_one_line
from tasks.tracking.sent import damage
from tasks.tracking.shipping import (
    execution_has_news,
    has_news,
    ship_all,
    tracking_uri,
)
from tasks.tracking.spools import executions, spools
from tasks.workspace.files import outside_repository
from tasks.workspace.work_folder import read_running
from tasks.workspace.worktrees import Place, workspaces


def examine(outputs: Outputs) -> Iterator[Finding]:
    """Every problem in a workspace, but for those of DVC's cache, which several may share."""
    place = outputs.place
    yield from examine_stages(place.folder)
    yield from _unsent(place.folder)
    try:
        load_params(place.folder / "params.yaml")
    except ParamsError as error:
        yield Finding(" ".join(str(error).splitlines()), remedy=f"mend {place.params}")
    yield from examine_outputs(outputs)


def notes(outputs: Outputs) -> Iterator[str]:
    """Unfinished work and missing outputs that are no problem: the next run deals with them."""
    yield from unfinished(outputs.place.folder)
    yield from missing(outputs)


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
        mended = list(_report(examine_notes(place.folder), place.before, fix=fix))
        tally.update(mended)
        if not all(mended):
            continue
        outputs = Outputs(place)
        tally.update(_report(examine(outputs), place.before, fix=fix))
        for note in notes(outputs):
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


def _damaged_store(root: Path) -> Iterator[Finding]:
    if problem := damage(tracking_uri(root)):
        yield Finding(
            problem, remedy="put a copy of it back, or move it away and run make sync, which sends "
            "every run again (decisions about promotions are in it alone)",
        )  # fmt: skip


def _unsent(root: Path) -> Iterator[Finding]:
    waiting = [folder for folder in spools(root) if _has(has_news, folder)]
    if waiting:
        names = ", ".join(sorted({folder.parent.name for folder in waiting}))
        yield Finding(
            f"{amount(len(waiting), 'run', ('is', 'are'))} not complete in MLflow, or shown as "
            f"running: {names}",
            partial(_send, root),
        )
    # A driver at work sends its own.
    at_work = any(running.alive for running in read_running(root))
    new = [] if at_work else executions(root)
    unsent = [one for one in new if _has(execution_has_news, one)]
    if unsent:
        names = ", ".join(folder.name for folder in unsent)
        yield Finding(
            f"{amount(len(unsent), 'execution', ('is', 'are'))} not complete in MLflow: {names}",
            partial(_send, root),
        )


def _has(news: Callable[[Path], bool], folder: Path) -> bool:
    try:
        return news(folder)
    except ValueError:  # A file of it is damaged: who sends it says which.
        return True


def _send(root: Path) -> str:
    lost = ("refused", "unreachable")
    troubles = [result.detail for result in ship_all(root) if result.state in lost]
    if troubles:
        raise OSError(troubles[0])
    return "sent"


if __name__ == "__main__":
    sys.exit(main())
