"""How much the data gate takes: a million pairs, and a second for each damaged file.

    nice python -m benchmarks.preference_gate rows 1000000
    nice python -m benchmarks.preference_gate damaged

`rows` writes that many made-up pairs (a third of the prompts twice or more, 1 % of the rows again,
1 % nearly again, 1 % contradicted) and lets `check` read, inspect, judge, split and write them, all
rules on. It prints seconds of the processor per part and the largest resident memory. `damaged`
lets `check` refuse each file of `tests/malformed.py` in a process of its own.
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
from itertools import pairwise
from pathlib import Path

from preferences.formats.reading import open_source
from preferences.intake import inspect
from preferences.params import ValidateParams
from preferences.settling import Settled
from tests.malformed import DAMAGED

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnrst" for vowel in "aeiou"]
SMALL = ("the", "a", "of", "is", "and", "to", "in", "that", "it", "for", "you", "with", "on")


def words(generator: random.Random, count: int) -> str:
    """Made-up English: every other word is a small one."""
    return " ".join(
        generator.choice(SMALL)
        if n % 2
        else "".join(generator.choices(SYLLABLES, k=generator.randint(2, 3)))
        for n in range(count)
    )


def pairs(count: int) -> Iterator[dict[str, str]]:
    """Rows with a known share of each defect."""
    generator = random.Random(0)
    recent: list[dict[str, str]] = []
    for n in range(count):
        chance = generator.random()
        if recent and chance < 0.03:
            row = dict(generator.choice(recent))
            if chance < 0.01:
                row["chosen"] += " indeed"
            elif chance < 0.02:
                row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
        else:
            old = bool(recent) and chance < 0.4
            prompt = generator.choice(recent)["prompt"] if old else words(generator, 12)
            row = {
                "prompt": prompt,
                "chosen": words(generator, 40),
                "rejected": words(generator, 30),
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
        clock = [time.process_time()]
        measured = inspect(rows, [], params)
        clock.append(time.process_time())
        from preferences.checking import check_measured  # noqa: PLC0415

        clock.append(time.process_time())
        checked = check_measured(
            rows, measured, allowed=frozenset(), report_dir=Path(folder) / "out", params=params
        )
        clock.append(time.process_time())
    read, _, rest = (after - before for before, after in pairwise(clock))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {each.rule: len(each.rows) for each in checked.verdict.findings if each.rows}
    sys.stdout.write(
        f"{count:,} pairs, {size / 1e6:,.0f} MB: read and inspected in {read:.0f} s, judged and "
        f"written in {rest:.0f} s ({count / (read + rest):,.0f} pairs per second), at most "
        f"{peak:,.0f} MiB\n{found}\n"
    )


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
    slowest = ", ".join(f"{name} {spent:.2f} s" for spent, name in sorted(seconds)[-3:])
    sys.stdout.write(f"{len(seconds)} damaged files, each refused with 2; slowest {slowest}\n")


def main() -> None:
    """One of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["rows", "damaged"])
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    options = parser.parse_args()
    run_rows(options.count) if options.what == "rows" else run_damaged()


if __name__ == "__main__":
    main()
