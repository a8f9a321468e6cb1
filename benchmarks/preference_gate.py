"""Time and memory of the data gate: up to a million pairs, and about a second per damaged file.

    python -m benchmarks.preference_gate rows 1000000
    python -m benchmarks.preference_gate damaged

`rows` writes that many generated pairs (responses of 60 words on average; a third of the prompts
repeated, 1 % of the rows duplicated, 1 % nearly duplicated, 1 % contradicted) and lets `check`
read, inspect, judge, split and write them, with all rules on. It prints wall-clock and CPU seconds
per part, and the largest resident memory. `damaged` runs `check` on each file of
`tests/malformed.py` in its own process, and on each unusual but sound one.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate, pairwise, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from preferences.formats.reading import open_source
from preferences.intake import inspect
from preferences.params import ValidateParams
from preferences.settling import Settled
from tests.malformed import DAMAGED, SOUND

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnrst" for vowel in "aeiou"]
SMALL = ("the", "a", "of", "is", "and", "to", "in", "that", "it", "for", "you", "with", "on")
OTHERS = ["".join(word) for length in (2, 3) for word in product(SYLLABLES, repeat=length)]
WORDS_IN_BOOK = 1 << 22


class Writer:
    """Made-up English: as in English, the n-th most common word is there about 1/n times."""

    def __init__(self, generator: random.Random):
        """Draws the words that answers are pieces of: many, since drawing takes its time."""
        self._generator = generator
        self._known = [*SMALL, *generator.sample(OTHERS, 30_000 - len(SMALL))]
        self._shares = list(accumulate(1 / (n + 5) for n in range(len(self._known))))
        self._book = self._drawn(WORDS_IN_BOOK)

    def prompt(self) -> str:
        """Twelve words."""
        return " ".join(self._drawn(12)) + "?"

    def answer(self) -> str:
        """60 words on average."""
        start = self._generator.randrange(len(self._book) - 90)
        return " ".join(self._book[start : start + self._generator.randint(30, 90)]) + "."

    def _drawn(self, count: int) -> list[str]:
        return self._generator.choices(self._known, cum_weights=self._shares, k=count)


def pairs(count: int) -> Iterator[dict[str, str]]:
    """Rows with a known share of each defect."""
    generator = random.Random(0)
    writer = Writer(generator)
    recent: list[dict[str, str]] = []
    for n in range(count):
        chance = generator.random()
        if recent and chance < 0.03:
            row = dict(generator.choice(recent))
            if chance < 0.01:
                row["chosen"] += " Indeed."
            elif chance < 0.02:
                row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
        else:
            old = bool(recent) and chance < 0.4
            row = {
                "prompt": generator.choice(recent)["prompt"] if old else writer.prompt(),
                "chosen": writer.answer(),
                "rejected": writer.answer(),
            }
        recent = [*recent[-200:], row] if n % 7 == 0 else recent
        yield row


def run_rows(count: int) -> None:
    """Prints seconds and memory of a whole check."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.jsonl"
        with path.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in pairs(count))
        size = path.stat().st_size
        params = ValidateParams()
        rows = Settled(open_source(path), params.heldout_fraction)
        clock = [_now()]
        measured = inspect(rows, [], params)
        clock.append(_now())
        # Three seconds for Great Expectations, which damaged data do not wait for.
        from preferences.checking import check_measured  # noqa: PLC0415
        from preferences.gate import Round, Undecided, decide  # noqa: PLC0415

        clock.append(_now())
        docs = Path(folder) / "docs"
        decide(measured, Undecided(), params, context=Round(), docs=docs)
        clock.append(_now())
        checked = check_measured(
            rows, measured, allowed=frozenset(), report_dir=Path(folder) / "out", params=params
        )
        clock.append(_now())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    inspecting, importing, deciding, judging = (after - before for before, after in pairwise(clock))
    whole = inspecting + importing + judging
    table = {
        "reading, splitting, measures": inspecting,
        "import of Great Expectations": importing,
        "expectations and Data Docs": deciding,
        "reading again, writing, baselines": judging - deciding,
        "whole check": whole,
    }
    found = {each.rule: len(each.rows) for each in checked.verdict.findings if each.rows}
    sys.stdout.write(f"{count:,} pairs, {size / 1e6:,.0f} MB\n")
    for part, (wall, processor) in table.items():
        sys.stdout.write(f"  {part:<34}{wall:>7.0f} s, of the processor {processor:>6.0f} s\n")
    sys.stdout.write(
        f"  {count / whole[1]:,.0f} pairs per second of the processor ({count / whole[0]:,.0f} of "
        f"the clock), at most {peak:,.0f} MiB\n{found}\n"
    )


def _now() -> NDArray[np.float64]:
    return np.array([time.monotonic(), time.process_time()])


def run_damaged() -> None:
    """Prints the slowest refusals."""
    seconds: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in DAMAGED:
            path = Path(folder) / case.name
            case.write(path)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "preferences", "check", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert done.returncode == 2, (case.name, done.returncode)
            assert done.stderr.count("\n") == 1, (case.name, done.stderr)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            seconds.append((spent, case.name))
        for case in SOUND:
            path = Path(folder) / case.name
            case.write(path)
            assert sum(1 for _ in open_source(path)) in (12, 13), case.name
    slowest = ", ".join(f"{name} {spent:.2f} s" for spent, name in sorted(seconds)[-3:])
    sys.stdout.write(f"{len(seconds)} damaged files, each refused with 2; slowest {slowest}\n")
    sys.stdout.write(f"{len(SOUND)} odd but sound files, each read in full\n")


def main() -> None:
    """One of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["rows", "damaged"])
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    options = parser.parse_args()
    run_rows(options.count) if options.what == "rows" else run_damaged()


if __name__ == "__main__":
    main()
