"""`python -m tasks.compare A B`: what differs in params, data, code, rewards, KL and results.

A and B are commits (branches, tags), variants or ordered runs by their names, runs in MLflow (id,
name in MLflow or Prefect, or execution), or `.` for what is checked out. Measurements are read from
DVC's cache by the hashes of each side, so nothing is checked out and nothing runs. Prints what
differs and draws a picture. Exit codes: 0, or 2 where a side is not known or the picture cannot be
written.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from preferences.withdrawals import WithdrawalsError
from tasks.comparing import differences
from tasks.comparing.differences import Differing, UnknownError
from tasks.comparing.plots import PictureError, draw, require_format
from tasks.comparing.rewards import other_judges, other_rewards
from tasks.comparing.sides import Side, SideError, measured, side, withdrawn
from tasks.reporting.summary import MetricsError, build_results
from tasks.running.amounts import amount
from tasks.tracing.records import RecordError
from tasks.workspace.files import relative_to
from tasks.workspace.withdrawn import NOTE

PICTURE = Path(".work") / "comparison.png"
MOST_NAMED = 6


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    given = _parser().parse_args(argv)
    root = Path.cwd()
    try:
        require_format(given.out)
        sides = (side(root, given.first), side(root, given.second))
        _compare(root, sides, given)
    except (PictureError, SideError, RecordError, MetricsError, WithdrawalsError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _compare(root: Path, sides: tuple[Side, Side], given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / "a", Path(scratch) / "b"]
        missing = [
            f"{one.name}: {path}"
            for one, folder in zip(sides, folders, strict=True)
            for path in measured(one, folder)
        ]
        rounds = _rounds(sides)
        results = [build_results(folder, rounds, seed=0, test_policy="") for folder in folders]
        for line in _lines(root, sides, results, folders):
            sys.stdout.write(f"{line}\n")
        if missing:
            sys.stdout.write(f"not on this machine (`dvc fetch --all-commits`): {_few(missing)}\n")
        if any(found["policies"] or found["reward_models"] for found in results):
            names = [f"A: {given.first}", f"B: {given.second}"]
            draw(given.out, names, results, folders, rounds)
            sys.stdout.write(f"picture: {relative_to(given.out, root)}\n")


def _lines(
    root: Path,
    sides: tuple[Side, Side],
    results: Sequence[dict[str, Any]],
    folders: Sequence[Path],
) -> Iterator[str]:
    first, second = sides
    for letter, one in zip("AB", sides, strict=True):
        commit = "" if one.kind == "commit" else "commit "
        yield f"{letter}: {one.name} ({one.kind}{', ' if commit else ' '}{commit}{one.commit[:9]})"
        if one.others:
            yield f"{letter} has not run with its params, so left out: {_few(one.others)}"
    yield from _inputs(root, first, second)
    apart, others = other_rewards(first, second), other_judges(first, second)
    for kind, differ in (
        ("reward_models", differences.reward_models),
        ("policies", partial(differences.policies, apart=apart, others=others)),
    ):
        title = kind.replace("_", " ")
        if without := [letter for letter, one in zip("AB", results, strict=True) if not one[kind]]:
            yield f"{title}: not compared, nothing measured of {' and '.join(without)} is here"
        else:
            yield from _section(title, differ(results[0], results[1]))
    paired = differences.paired_gold(folders[0], folders[1], _rounds(sides))
    yield from (f"  {key} gold, B - A on the same prompts: {by}" for key, by in paired.items())


def _inputs(root: Path, first: Side, second: Side) -> Iterator[str]:
    """What the sides were given: params, data and code."""
    yield from _section("params", differences.params(first, second))
    try:
        yield from _section("data", differences.data(first, second))
    except UnknownError as error:
        yield f"data: not compared, {error}"
    for letter, one in (("A", first), ("B", second)):
        if paths := withdrawn(root, one):
            yield f"{letter} {NOTE}: {_few(paths)}"
    try:
        code = differences.code(root, first, second)
        count = amount(len(code), "file", ("differs", "differ"))
        yield f"code: {count}{': ' if code else ''}{_few(code)}"
    except UnknownError as error:
        yield f"code: not compared, {error}"


def _section(title: str, rows: Sequence[Differing]) -> Iterator[str]:
    if not rows:
        yield f"{title}: no difference"
        return
    lines = [(f"{title}:", "A", "B", "B - A" if any(row.note for row in rows) else "")]
    lines += [(f"  {row.name}", row.first, row.second, row.note) for row in rows]
    widths = [max(len(text) for text in column) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        yield "  ".join(text.ljust(width) for text, width in cells).rstrip()


def _rounds(sides: tuple[Side, Side]) -> list[str]:
    """The rounds that either has run, in the order of their params; others behind them."""
    stages = [ran.stage.partition("@") for one in sides for ran in one.runs]
    ran = {key for _, at, key in stages if at}
    named = [key.split(".")[1] for one in sides for key in one.params if key.startswith("rounds.")]
    named += [key for one in sides for key in one.params.get("rounds", "").split()]  # MLflow's
    known = [key for key in dict.fromkeys(named) if key in ran]
    return [*known, *sorted(ran - set(known), key=lambda key: (len(key), key))]


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.compare", description=__doc__.partition("\n")[2]
    )
    for place in ("first", "second"):
        parser.add_argument(place, help="a commit, variant, run, or `.`")
    parser.add_argument(
        "--out", type=Path, default=PICTURE, metavar="FILE", help=f"the picture; {PICTURE}"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
