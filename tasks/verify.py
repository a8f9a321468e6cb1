"""`python -m tasks.verify [--stages N]` (`make verify`): does this machine write a commit's bytes?

Runs the pipeline of the commit that is checked out in a clone of its own (`.work/verify`), without
any cache, and compares each output with the commit's `dvc.lock`. Where one differs, it names the
first stage that differs and what may explain it, and keeps the clone. Uncommitted changes are not
part of it, and nothing in the checkout is changed. Exit codes: 0 equal, 8 different, 2 bad input,
3, 4 and 5 as of the stage that ended the run, 7 another verification is running, 143 or 130
interrupted, 137 a stage was killed (memory), 1 anything else.

With `--outputs` nothing runs: the outputs that are here, or in DVC's cache, are hashed and compared
with `dvc.lock`. This needs no DVC.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.params.loading import ParamsError
from tasks.reporting.ending import Ended, how_it_ended
from tasks.reporting.machine_row import machine_row, read_cpuinfo
from tasks.reporting.summary import read_outcomes
from tasks.reporting.verification import (
    Committed,
    changed_inputs,
    differing,
    environment_lines,
    number_lines,
    outputs_digest,
    read_committed,
)
from tasks.running.machine_errors import in_one_line
from tasks.tracing.contents import Contents
from tasks.tracing.intact import check
from tasks.tracing.records import RecordError, Records
from tasks.workspace.driver_lock import BUSY_EXIT_CODE, WorkspaceBusyError
from tasks.workspace.dvc_lockfile import DamagedLockError, hashes, read_entries
from tasks.workspace.dvc_process import DvcProcess, dvc_environment
from tasks.workspace.files import now_ms, outside_repository
from tasks.workspace.fresh_clone import clone_commit, size, sole_clone, uncommitted
from tasks.workspace.git import GitError, git
from tasks.workspace.stage_order import ordered
from tasks.workspace.worktrees import WorkspaceError

DIFFERS_EXIT_CODE = 8
"""The run went through, and an output has other bytes than the commit's."""
MOST_NAMED = 3


class VerifyError(Exception):
    """What was asked for cannot be verified; the message says why."""


class Verified(NamedTuple):
    """A run that went through: which stages, what the commit says of them, what was found."""

    commit: str
    stages: Sequence[str]
    part: str
    """`all`, or `the first 2 stages'`."""
    committed: Committed
    found: Mapping[str, Mapping[str, Any]]
    """Stage -> its entry in the dvc.lock of this run."""
    environments: Mapping[str, Mapping[str, Any]]
    """Stage -> what it ran on here."""


@in_one_line
def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.verify", description=__doc__.partition("\n")[2]
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stages", metavar="N", help="only the first N stages of the pipeline")
    what.add_argument(
        "--outputs", action="store_true", help="run nothing; hash the outputs that are here"
    )
    given = parser.parse_args(argv)
    count: str | None = given.stages
    root = Path.cwd()
    try:
        if given.outputs:
            return _check_outputs(root)
        commit = _head(root)
        with sole_clone(root) as clone:
            return _verify(root, clone, commit, count)
    except (VerifyError, RecordError, GitError, WorkspaceError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except WorkspaceBusyError as error:
        sys.stderr.write(f"{error}\n")
        return BUSY_EXIT_CODE
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; nothing was verified.\n")
        return 130


def _check_outputs(root: Path) -> int:
    checked = check(root, Records(root, Contents(root)).now)
    for problem in checked.wrong:
        sys.stdout.write(f"{problem}\n")
    total = sum(map(len, (checked.equal, checked.cached, checked.wrong)))
    sys.stdout.write(
        f"Of {total} outputs in dvc.lock {len(checked.equal)} have their bytes here, "
        f"{len(checked.cached)} are whole in the cache, "
        f"{len(checked.wrong)} are wrong or missing.\n"
    )
    return DIFFERS_EXIT_CODE if checked.wrong else 0


def _head(root: Path) -> str:
    if problem := outside_repository(root):
        raise VerifyError(problem)
    if edited := uncommitted(root):
        named = _named(edited)
        sys.stdout.write(f"The commit is verified, without the uncommitted changes: {named}\n")
    return git(root, "rev-parse", "--verify", "HEAD")


def _verify(root: Path, clone: Path, commit: str, count: str | None) -> int:
    keep = False
    try:
        committed = _committed(root, clone, commit)
        pipeline = _pipeline(clone)
        stages = _chosen(pipeline, count, commit)
        _require_recorded(stages, committed, commit)
        ended = _run(clone, commit, stages)
        if ended.code:
            sys.stderr.write(f"{ended.message}\nNothing was verified; the next run starts anew.\n")
            return ended.code
        part = "all" if stages == pipeline else _first(len(stages))
        environments = {o["stage"]: o.get("environment", {}) for o in read_outcomes(clone)}
        verified = Verified(commit, stages, part, committed, read_entries(clone), environments)
        keep = bool(found := differing(stages, committed.entries, verified.found))
        sys.stdout.write("\n".join(_words(verified, found, clone)) + "\n")
        return DIFFERS_EXIT_CODE if found else 0
    finally:
        _leave(root, clone, keep=keep)


def _committed(root: Path, clone: Path, commit: str) -> Committed:
    try:
        clone_commit(root, commit, clone)
        return read_committed(clone)
    except (ParamsError, DamagedLockError) as error:
        raise VerifyError(f"commit {commit[:7]}: {error}".replace(f"{clone}/", "")) from None


def _pipeline(clone: Path) -> list[str]:
    # Imported here because it imports DVC, which would delay every error before.
    from tasks.workspace.dvc_graph import GraphError, read_graph  # noqa: PLC0415

    try:
        return list(ordered(read_graph(clone).needs))
    except GraphError as error:
        raise VerifyError(str(error)) from None


def _chosen(pipeline: list[str], count: str | None, commit: str) -> list[str]:
    if count is None:
        return pipeline
    if not count.isdecimal() or not 1 <= int(count) <= len(pipeline):
        raise VerifyError(
            f"STAGES: expected a whole number from 1 to {len(pipeline)}, the stages of commit "
            f"{commit[:7]}; found {count!r}"
        )
    return pipeline[: int(count)]


def _require_recorded(stages: Sequence[str], committed: Committed, commit: str) -> None:
    if missing := [stage for stage in stages if stage not in committed.entries]:
        raise VerifyError(
            f"dvc.lock of commit {commit[:7]}: no entry for {_named(missing)}, so there is nothing "
            "to compare with; run `make repro` and commit dvc.lock"
        )


def _run(clone: Path, commit: str, stages: Sequence[str]) -> Ended:
    (clone / "dvc.lock").unlink()
    execution, started_ms = f"verify-{commit[:7]}", now_ms()
    own = {
        "RLHF_EXECUTION": execution,
        # Where DVC remembers hashes of files; that of the user's is for all repositories.
        "DVC_SITE_CACHE_DIR": str(clone / ".dvc" / "tmp" / "site"),
    }
    # --no-commit: nothing goes into the clone's cache either, which would double its size.
    dvc = DvcProcess(
        ["repro", "--no-commit", *stages],
        folder=clone,
        environment=dvc_environment(os.environ) | own,
    )
    code = dvc.wait()
    if dvc.signalled is not None:
        return Ended(128 + dvc.signalled, "Interrupted.")
    return how_it_ended(clone, execution, code, None, started_ms)


def _words(run: Verified, found: Mapping[str, list[str]], clone: Path) -> list[str]:
    entries = {stage: run.committed.entries[stage] for stage in run.stages}
    total = sum(len(hashes(entry.get("outs"))) for entry in entries.values())
    commit, digest = run.commit[:7], outputs_digest(run.found)
    if not found:
        outputs = f"{run.part} {total} output{'s' if total > 1 else ''}"
        lines = [f"{outputs.capitalize()} have the bytes of commit {commit}."]
        result, stage = f"{outputs} equal", run.stages[-1]
    else:
        stage = next(iter(found))
        differ = sum(map(len, found.values()))
        lines = [
            f"{stage} is the first stage that differs from commit {commit}: "
            f"{_named(found[stage])} ({differ} of {total} outputs differ in all)."
        ]
        lines += _explanations(run, stage, clone)
        result = f"{differ} of {run.part} {total} outputs differ, from {stage} on"
    row = machine_row(
        run.environments.get(stage, {}),
        commit=run.commit,
        result=result,
        digest=digest,
        cpuinfo=read_cpuinfo(),
    )
    return [*lines, "Row for docs/reproducibility.md:", row]


def _explanations(run: Verified, stage: str, clone: Path) -> list[str]:
    lines = []
    if inputs := changed_inputs(stage, run.committed.entries, run.found):
        lines.append(
            f"Its inputs are others than dvc.lock recorded: {_named(inputs)}. "
            "Run `make repro` and commit dvc.lock with them."
        )
    here = run.environments.get(stage, {})
    found = environment_lines(run.committed.environment, here)
    lines += ["Environment:", *(f"  {line}" for line in found)]
    if numbers := list(number_lines(run.committed.metrics, clone)):
        lines += ["Numbers of the commit, and those found with their 95 % interval:"]
        lines += [f"  {line}" for line in numbers]
    return lines


def _leave(root: Path, clone: Path, *, keep: bool) -> None:
    if not clone.exists():
        return
    place = f"{clone.relative_to(root)} ({size(clone) / 1e6:.0f} MB)"
    if keep:
        sys.stdout.write(f"{place} is kept, to look at; the next `make verify` removes it.\n")
    else:
        shutil.rmtree(clone)
        sys.stdout.write(f"{place} was removed.\n")


def _first(count: int) -> str:
    return "the first stage's" if count == 1 else f"the first {count} stages'"


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


if __name__ == "__main__":
    sys.exit(main())
