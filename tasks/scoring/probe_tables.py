"""What probes of a reward model found, as CSV and as a table of Markdown."""

import csv
from collections.abc import Sequence
from pathlib import Path

from rlhf.intervals import Interval
from tasks.scoring.reward_probes import Probe


def write_probes(path: Path, probes: Sequence[Probe]) -> None:
    """The probes as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["probe", "pairs", "won", "low", "high", "demand", "limit", "passed"])
        for found in probes:
            won = found.won
            ends = [] if won is None else [won.mean, won.low, won.high]
            shown = [f"{end:.6f}" for end in ends] or ["", "", ""]
            passed = str(found.passed).lower()
            writer.writerow([found.name, found.pairs, *shown, found.demand, found.limit, passed])


def probe_table(probes: Sequence[Probe]) -> str:
    """The probes as a Markdown table, each with its interval drawn from 0 to 1."""
    lines = ["| probe | pairs | won | from 0 to 1 | demand | |", "|---|---:|---:|---|---|---|"]
    for found in probes:
        cells = [
            found.name,
            str(found.pairs),
            "" if found.won is None else f"{found.won.mean:.3f}",
            f"`{drawn(found.won)}`",
            "" if found.demand == "none" else f"{found.demand} {found.limit}",
            "" if found.passed else f"**fails**{_too_few(found)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _too_few(found: Probe) -> str:
    return f": fewer than {found.least} pairs" if found.pairs < found.least else ""


def drawn(share: Interval | None, *, width: int = 41) -> str:
    """An interval in letters, such as `·····│··──●──··`; the bar is at one half."""
    letters = ["·"] * width
    if share is not None:
        low, mean, high = (round(end * (width - 1)) for end in (share.low, share.mean, share.high))
        letters[low : high + 1] = ["─"] * (high + 1 - low)
        letters[mean] = "●"
    if letters[width // 2] == "·":
        letters[width // 2] = "│"
    return "".join(letters)
