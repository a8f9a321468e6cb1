"""`python -m benchmarks.torture [--seed N] [--share 0.2] [ROW ...]` (`make torture`).

Runs the trials and writes docs/reliability.md. Rows that are not named keep the result they had in
`.work/torture/results.json`. Exits 0 when every trial held. The whole takes about half an hour of
one core; `--share` runs that part of each row's trials. A disk can only be filled by who may mount
one.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
            files[0].write_text(json.dumps(results, indent=1) + "\n")
            write_page(files[1], results)
    return 0 if all(result["held"] == result["tried"] for result in results.values()) else 1


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
