"""`python -m tasks.promote ROUND` (`make promote`): may this policy go into production?

Compares the round's policy with the one in production (with SFT before the first) on the held-out
prompts, and prints what the gate says. With `--approve` it becomes the alias `production` of
MLflow's registered model `rlhf-policy`, if it passes; `--override` promotes it although it fails.
`--reject` records the contrary. `--rollback` (`make rollback`) restores the policy that was in
production before. Each of them takes `--who` and `--why`, which are recorded. Without a round:
what is in production, and which policies wait for a decision. Exit codes: 0, 2 bad input, 4 the
gate refuses.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter, ValidationError
from requests import RequestException

from tasks.params.loading import ParamsError
from tasks.promoting.asking import ask, conclude
from tasks.promoting.gate import Limits, Verdict
from tasks.running.machine_errors import in_one_line
from tasks.tracking import promotion
from tasks.tracking.promotion import Decision, PromotionError
from tasks.workspace.dvc_lockfile import DamagedLockError
from tasks.workspace.files import outside_repository

REFUSED = 4
SHOWN = ("rlhf.round", "dvc.md5", "decision", "decided_by", "decided_at", "override")


@in_one_line
def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    given = _parser().parse_args(argv)
    try:
        if problem := _problem(given):
            raise PromotionError(problem)
        root = Path.cwd()
        if problem := outside_repository(root):
            raise PromotionError(problem)
        if given.rollback:
            return _roll_back(root, given)
        return _promote(root, given) if given.round else _show(root)
    except (
        PromotionError, ParamsError, DamagedLockError, MlflowException, RequestException
    ) as error:  # fmt: skip
        sys.stderr.write(f"{error}\n")
        return 2


def _promote(root: Path, given: argparse.Namespace) -> int:
    chosen = promotion.candidate(root, given.round)
    verdict = ask(root, chosen, _limits(given))
    sys.stdout.write(f"{shown(verdict)}\n")
    if given.choice is None:
        return REFUSED if verdict.failed else 0
    if given.choice == "approve" and verdict.failed and not given.override:
        words = "Not promoted. `--override` promotes it all the same, and records that.\n"
        sys.stderr.write(words)
        return REFUSED
    decision = Decision(choice=given.choice, who=given.who, why=given.why)
    version = conclude(root, chosen, verdict, decision, override=given.override)
    done = "is in production" if given.choice == "approve" else "was rejected"
    sys.stdout.write(f"{promotion.MODEL} version {version.version} {done}.\n")
    return 0


def _roll_back(root: Path, given: argparse.Namespace) -> int:
    left, restored = promotion.rollback(root, who=given.who, why=given.why)
    sys.stdout.write(
        f"{promotion.MODEL} version {restored.version} (round {restored.tags.get('rlhf.round')}) "
        f"is in production again, instead of version {left.version} "
        f"(round {left.tags.get('rlhf.round')}).\n"
    )
    return 0


def _show(root: Path) -> int:
    for alias in (promotion.ALIAS, promotion.CHALLENGER):
        version = promotion.with_alias(root, alias)
        if version is None:
            sys.stdout.write(f"{alias}: none\n")
            continue
        said = " ".join(f"{key} {version.tags[key]}" for key in SHOWN if version.tags.get(key))
        note = promotion.note_of(root, version)
        sys.stdout.write(
            f"{alias}: {promotion.MODEL} version {version.version}, {said}"
            f"{f'; {note}' if note else ''}\n"
        )
    return 0


def shown(verdict: Verdict) -> str:
    """The gate's verdict for a terminal, one line for each check."""
    marks = {True: "passed", False: "FAILED", None: "-"}
    width = max(len(check.name) for check in verdict.checks)
    lines = [
        f"{marks[check.passed]:6}  {check.name.ljust(width)}  {check.found} "
        f"(expected {check.expected})"
        for check in verdict.checks
    ]
    head = f"round {verdict.round_key} ({verdict.digest}) against {verdict.before}:"
    end = "does not pass the gate" if verdict.failed else "passes the gate"
    return "\n".join([head, *lines, f"round {verdict.round_key} {end}."])


def _limits(given: argparse.Namespace) -> Limits:
    names = [field.name for field in dataclasses.fields(Limits)]
    try:
        return TypeAdapter(Limits).validate_python({name: getattr(given, name) for name in names})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag = str(first["loc"][0]).replace("_", "-")
        raise PromotionError(f"--{flag}: {first['msg']}, found {first['input']}") from None


def _problem(given: argparse.Namespace) -> str | None:
    """What is wrong with the command line as a whole."""
    decides = given.rollback or given.choice is not None
    if given.rollback and (given.round or given.choice):
        return "--rollback takes no round: it restores what was in production before"
    if given.choice is not None and not given.round:
        return f"--{given.choice}: name the round"
    if decides and not (given.who.strip() and given.why.strip()):
        return "--who and --why: a decision needs a name and a reason"
    if given.override and given.choice != "approve":
        return "--override goes with --approve"
    problem = promotion.unfit(given.who, given.why)
    return f"--{problem}" if problem else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.promote", description=__doc__.partition("\n")[2]
    )
    parser.add_argument("round", nargs="?", help="key of the round in params.yaml")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--approve", dest="choice", action="store_const", const="approve")
    choice.add_argument("--reject", dest="choice", action="store_const", const="reject")
    parser.add_argument("--override", action="store_true", help="approve although the gate refuses")
    parser.add_argument("--rollback", action="store_true", help="restore what was there before")
    parser.add_argument("--who", default="", metavar="NAME", help="who decides")
    parser.add_argument("--why", default="", metavar="REASON", help="and why")
    for field in dataclasses.fields(Limits):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(
            flag, type=float, default=field.default, help=f"limit (default {field.default})"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
