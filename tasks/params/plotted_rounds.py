"""The rounds of params.yaml among the curves that dvc.yaml plots.

DVC draws neither a folder nor a glob as curves of one figure, and its plots have no `foreach`, so
dvc.yaml has a line for each round. Those of the shipped rounds stay. Drivers write a marked line
for each further round of params.yaml, and take it away again with the round.
"""

import re
from collections.abc import Collection, Iterator
from itertools import groupby

MARK = "  # a round of params.yaml"
"""At the end of the lines that are written here."""

_CURVE = re.compile(r"^( +results/\w+/)(\w+)(/[^\s:]+: [^#\n]*[^#\s])")
"""Of one round, as in `results/ppo/r1/history.csv: objective/kl`."""


def with_rounds(text: str, rounds: Collection[str]) -> str:
    """The text of a dvc.yaml with exactly these rounds among its marked curves."""
    lines = [line for line in text.splitlines(keepends=True) if MARK not in line]
    figures = groupby(lines, key=lambda line: _CURVE.match(line) is not None)
    return "".join(
        line
        for of_rounds, figure in figures
        for line in (_with_further(list(figure), rounds) if of_rounds else figure)
    )


def _with_further(curves: list[str], rounds: Collection[str]) -> Iterator[str]:
    """Lines of one figure, then those of the rounds that it lacks."""
    yield from curves
    found = [match for line in curves if (match := _CURVE.match(line))]
    shown = {match[2] for match in found}
    alike = dict.fromkeys((match[1], match[3]) for match in found)
    for key in rounds:
        if key not in shown:
            yield from (f"{before}{key}{after}{MARK}\n" for before, after in alike)
