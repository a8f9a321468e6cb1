"""`python -m benchmarks.torture [--seed N] [--share 0.2] [ROW ...]` (`make torture`).

Runs the trials and writes docs/reliability.md once every row has a result. Rows that are not named
keep the result they had in `.work/torture/results.json`, which is this checkout's own: while some
have none there, the page stays as it was. Exits 0 when every trial held. The whole takes about half
an hour of one core; `--share` runs that part of each row's trials. A disk can only be filled by who
may mount one.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Imported here, so that the forked children need not.
import tasks.base
import tasks.ppo
import tasks.reward
import tasks.sft  # noqa: F401
from benchmarks.torture.children import fork, wait
from benchmarks.torture.page import write_page
from benchmarks.torture.rows import ROWS
from benchmarks.torture.world import World
from tasks.reporting.summary import cpu_name
from tests import stage_world

RESULTS, PAGE = Path(".work/torture/results.json"), Path("docs/reliability.md")


def main() -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="part of each row's trials")
    parser.add_argument("--folder", type=Path, help="write results and page there instead")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args()
    if unknown := [name for name in options.rows if name not in ROWS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(ROWS)}")
    files = [RESULTS, PAGE]
    if options.folder is not None:
        files = [options.folder / path.name for path in files]
    results = json.loads(files[0].read_text()) if files[0].exists() else {}
    files[0].parent.mkdir(parents=True, exist_ok=True)
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else "")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "world"
        root.mkdir()
        assert wait(fork(lambda: stage_world.build(root) or 0, root / "log.txt")) == 0
        for name in options.rows or ROWS:
            row = ROWS[name]
            trials = max(1, round(row.trials * options.share))
            started = time.monotonic()
            count = row.make(World(root, random.Random(f"{options.seed} {name}")), trials)
            took = time.monotonic() - started
            print(
                f"{name:<20} {count.held}/{count.tried}  {took:.0f} s  {count.remark}", flush=True
            )
            for failure in count.failures:
                print(f"  did not hold: {failure}", flush=True)
            results[name] = {
                "tried": count.tried,
                "held": count.held,
                "remark": count.remark,
                "failures": count.failures,
                "seed": options.seed,
                "commit": commit,
                "machine": f"{cpu_name()}, {os.cpu_count()} cores",
            }
            lacking = keep(results, *files, always=options.folder is not None)
    if lacking and options.folder is None:
        print(
            f"{PAGE} stays as it is: {len(lacking)} of {len(ROWS)} rows have no result here "
            f"({', '.join(lacking)}); --folder FOLDER writes a page of those that have"
        )
    return 0 if all(result["held"] == result["tried"] for result in results.values()) else 1


def keep(results: Mapping[str, Any], file: Path, page: Path, *, always: bool) -> list[str]:
    """Write the results, and the page where every row has one or `always`; rows without one."""
    file.write_text(json.dumps(results, indent=1) + "\n")
    lacking = [name for name in ROWS if name not in results]
    if always or not lacking:
        write_page(page, results)
    return lacking


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
