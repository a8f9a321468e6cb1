"""Numbers of one row of the speed benchmark: ratios, and shares of what the machine could do."""

import re
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.speed_world import ANSWER, BATCH, PASSES

WHERE = ("size", "lengths", "precision", "bits", "machine")
"""What a row says beside its work."""

OURS = PASSES * BATCH
"""Responses that our side decodes together: all of a rollout."""

Row = dict[str, Any]


def rows_of(measured: Sequence[Row]) -> list[Row]:
    """The rows of several measurements, each with what holds for all of its own."""
    return [
        row
        | {"bits": bits(found), "precision": precision(found)}
        | {"machine": short(found["machine"], found["threads"]), "ends": found["ends"]}
        | {"decoded_by_trl": decoded_by_trl(found)}
        for found in measured
        for row in found["rows"]
    ]


CONFINED = ", confined to AVX2"
"""What is said of a processor that kept its AVX-512 from both sides."""


def short(machine: str, threads: int = 1) -> str:
    """A processor's maker, family and model, such as AMD 26/2; anything else as it is.

    With the number of threads where it is not one: seconds of both are not comparable.
    """
    parts = re.match(r"(Intel|AMD).*\(family (\d+), model (\d+)\)", machine)
    confined = " with AVX2" if machine.endswith(CONFINED) else ""
    name = f"{parts[1]} {parts[2]}/{parts[3]}{confined}" if parts else machine
    return name if threads == 1 else f"{name}, {threads} threads"


def bits(found: Row) -> str:
    """Of our side and of TRL's."""
    return f"{found['bits']['ours']} / {found['bits']['trl']}"


def precision(found: Row) -> str:
    """Of both sides; measurements that do not say are older than the choice."""
    said: str = found.get("precision", "float32")
    return said


def decoded_by_trl(found: Row) -> int:
    """Responses that TRL decoded together; measurements that do not say had 16 (OURS: all)."""
    return int(found.get("decoded_by_trl", BATCH))


def with_quickest_rollout(row: Row) -> Row:
    """The row as if TRL had decoded all responses in the time that it took for the first of them.

    It cannot be quicker than that: each step then computes the same for more rows.
    """
    share = row.get("decoded_by_trl", OURS) / OURS
    if share >= 1 or not row["work"].startswith("ppo") or "trl" not in row:
        return row
    runs = []
    for run in row["trl"]:
        saved = (1 - share) * run["phases"]["rollout"]
        changed = {name: run["phases"][name] - saved for name in ("total", "rollout")}
        runs.append(run | {"phases": run["phases"] | changed})
    return row | {"trl": runs}


def row_beside(row: Row, rows: Sequence[Row]) -> Row:
    """The row of the same measurement that has TRL's runs, if any has: all PPO shares one."""
    work = "ppo-separate" if row["work"].startswith("ppo") else row["work"]
    same = {name: row[name] for name in WHERE} | {"work": work}
    return next(other for other in rows if same.items() <= other.items())


def seconds(results: Sequence[Row]) -> list[float]:
    """One number for each run: the whole iteration, or the median step."""
    return [
        result["phases"]["total"] if "phases" in result else statistics.median(result["steps"])
        for result in results
    ]


def sampling(results: Sequence[Row]) -> list[float]:
    """Seconds of the rollout for 1,000 tokens, of each run."""
    return [run["phases"]["rollout"] / run["phases"]["tokens"] * 1000 for run in results]


def peak(results: Sequence[Row]) -> int:
    """The most bytes of any run."""
    return max(result["peak"] for result in results)


def speed_ratio(row: Row, rows: Sequence[Row]) -> float | None:
    """How many times as long TRL takes; None without TRL."""
    if "trl" not in (beside := row_beside(row, rows)):
        return None
    return statistics.median(seconds(beside["trl"])) / statistics.median(seconds(row["ours"]))


def sampling_ratio(row: Row, rows: Sequence[Row]) -> float | None:
    """The same of the rollouts alone, for each token."""
    if "trl" not in (beside := row_beside(row, rows)):
        return None
    return statistics.median(sampling(beside["trl"])) / statistics.median(sampling(row["ours"]))


def memory_share(row: Row, rows: Sequence[Row]) -> float | None:
    """Our peak memory over TRL's."""
    if "trl" not in (beside := row_beside(row, rows)):
        return None
    return peak(row["ours"]) / peak(beside["trl"])


def update_share(results: Sequence[Row]) -> float | None:
    """The products of our update a second, over the most that the processor does."""
    if not (flops := results[0].get("flops")):
        return None
    return statistics.median(flops / one["phases"]["update"] / one["ceiling"] for one in results)


def read_share(results: Sequence[Row]) -> float | None:
    """What the steps of a rollout must read, over what memory gives in that time.

    The policy's weights once in each step, and keys and values; of older runs the weights alone.
    """
    if "bandwidth" not in results[0]:
        return None
    return statistics.median(
        (one.get("steps", ANSWER) * one["weights"] + one.get("cached", 0))
        / one["phases"]["rollout"]
        / one["bandwidth"]
        for one in results
    )
