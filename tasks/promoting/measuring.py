"""Measures one candidate for the gate, in a process of its own: torch stays out of the flow's.

    python -m tasks.promoting.measuring FILE < task.json

The task names both policies; the verdict is written to the file. The test prompts come last, and
only where everything else has passed: each look at them makes them worth a little less.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from tasks.params.loading import load_params
from tasks.promoting.gate import Limits, Verdict, check_of_test_prompts, checks
from tasks.running.outcome import StageEnd
from tasks.workspace.files import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be compared; folders are below the workspace or absolute."""

    round_key: str
    digest: str
    candidate: str
    before: str
    before_is: str
    """In words."""
    before_version: str | None
    withdrawn: str | None
    limits: Limits


TASK = TypeAdapter(Task)
VERDICT = TypeAdapter(Verdict)


def measure(task: Task) -> Verdict:
    """The gate's verdict, in the workspace that is the current folder.

    Raises:
        StageEnd: there are no prompts, the judge cannot be asked, or the guards' files are missing.
    """
    # These bring torch, which who only reads a verdict must not wait for.
    from tasks.promoting.comparison import Comparison  # noqa: PLC0415
    from tasks.promoting.guard import findings, probed  # noqa: PLC0415

    params = load_params(Path("params.yaml"))
    guard = findings(Path(), task.round_key, params)
    comparison = Comparison(
        params,
        Path(task.candidate),
        Path(task.before),
        Path(f"models/rounds/{task.round_key}/reward"),
    )
    heldout = comparison.on("heldout")
    decided = guard is None or probed(Path(), task.round_key)
    found = checks(heldout, guard, task.withdrawn, task.limits, probed=decided)
    test = comparison.on("test") if all(check.passed for check in found) else None
    return Verdict(
        round_key=task.round_key,
        digest=task.digest,
        before=task.before_is,
        before_version=task.before_version,
        limits=task.limits,
        checks=(*found, check_of_test_prompts(heldout, test, task.limits)),
        heldout=heldout,
        test=test,
    )


def main(argv: list[str]) -> int:
    """Entry point; the exit code."""
    try:
        verdict = measure(TASK.validate_json(sys.stdin.read()))
    except (StageEnd, OSError, ValueError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 1
    write_json(Path(argv[0]), VERDICT.dump_python(verdict, mode="json"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
