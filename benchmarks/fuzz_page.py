"""Fuzzes the running labelling page with requests that Hypothesis makes, and checks its store.

    python -m benchmarks.fuzz_page --minutes 60 --seed 0

Starts `python -m feedback serve` on 127.0.0.1 with a store of its own and sends it volleys of
requests (`benchmarks.fuzz_page_requests`): the page's calls by two annotators and a lead, in any
order and at once, with odd values, headers, sizes and bytes. Each example has people, pairs and an
address of its own, so that it can be repeated and reduced. What must hold in each:

- every whole request gets a reply within seconds, none of them an error of the server (5xx), all
  with the security headers; nothing of a traceback reaches the log;
- the store's file is sound, its tables agree with each other, and it holds no answer that could
  not have been given: no negative time, none of somebody paused, none twice;
- the round can be exported in all four forms, and read again.

Goes through seeds one after the other, with a new store and server for each, until the time is
over, which is that of the processor, the servers' included; every other server stands behind a
proxy. Prints one JSON object; what was found is in it, with its seed, and the exit code is then 1.
`--seed N --only-seed` repeats one seed, and reduces what it finds. Calls that fit each other are
made by `benchmarks.fuzz_page_steps`.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks.fuzz_page_requests import Request, volleys
from benchmarks.fuzz_page_world import World

EXAMPLES = 200
"""Examples per seed."""


_LONGEST = 5000
"""Characters of a finding that are printed; `--only-seed` repeats it."""


class TimeOverError(BaseException):
    """Ends a seed; no `Exception`, which Hypothesis would take for a finding."""


def run_seed(
    number: int, examples: int, until: float, statuses: Counter[int], *, reduced: bool
) -> str | None:
    """Sends the examples of one seed to a new server; returns what fell short, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), behind_proxy=bool(number % 2))
        world.statuses = statuses
        try:
            world.start()
            _examples(world, number, examples, until, reduced=reduced)
            world.stop()
        except Exception as error:  # of whatever kind: it is a finding
            notes = "\n".join(getattr(error, "__notes__", []))
            return f"{type(error).__name__}: {error}\n{notes}".strip()[:_LONGEST]
        finally:
            world.kill()
    return None


def _examples(world: World, number: int, examples: int, until: float, *, reduced: bool) -> None:
    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if reduced else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(volleys)
    def hold(sent: list[list[Request]]) -> None:
        # Hypothesis has no limit of time.
        if processor_s() > until:
            raise TimeOverError
        world.send_and_check(sent)

    with contextlib.suppress(TimeOverError):
        hold()


def processor_s() -> float:
    """Seconds of the processor so far, with those of the servers that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def main() -> int:
    """Fuzzes for the given time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="of the processor")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--only-seed", action="store_true", help="do not go on to further seeds")
    parser.add_argument(
        "--examples", type=int, default=EXAMPLES, help="per seed (default: %(default)s)"
    )
    given_ = parser.parse_args()
    begin = time.monotonic()
    until = 60 * given_.minutes
    statuses: Counter[int] = Counter()
    findings: list[dict[str, Any]] = []
    number = given_.seed
    while processor_s() < until:
        found = run_seed(number, given_.examples, until, statuses, reduced=given_.only_seed)
        if found is not None:
            findings.append({"seed": number, "found": found})
            sys.stderr.write(f"seed {number}: {found}\n")
        number += 1
        if given_.only_seed:
            break
    result = {
        "commit": _commit(),
        "minutes": round(processor_s() / 60, 1),
        "minutes_on_the_clock": round((time.monotonic() - begin) / 60, 1),
        "seeds": [given_.seed, number - 1],
        "examples_per_seed": given_.examples,
        "requests": sum(statuses.values()),
        "replies": {str(status): count for status, count in sorted(statuses.items())},
        "findings": findings,
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return int(bool(findings))


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
