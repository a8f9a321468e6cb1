"""What the speed benchmark was to show (issue 18), beside what it has measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.speed_numbers import (
    OURS,
    WHERE,
    Row,
    memory_share,
    read_share,
    sampling_ratio,
    speed_ratio,
    update_share,
    with_quickest_rollout,
)

TITLES = ("size", "lengths", "precision", "bits: ours / TRL", "machine")
"""Of the columns `WHERE`."""

Number = Callable[[Row, Sequence[Row]], float | None]


def _update(row: Row, _: Sequence[Row]) -> float | None:
    return update_share(row["ours"])


def _decoding(row: Row, _: Sequence[Row]) -> float | None:
    return read_share(row["ours"])


@dataclass(frozen=True)
class Goal:
    """A bound on a number of one work."""

    what: str
    work: str
    lengths: str
    number: Number
    bound: float
    sizes: tuple[str, ...] = ("4M", "135M")
    share: bool = False
    """Written as a percentage."""
    most: bool = False
    """The bound is the most that it may be, not the least."""

    def met(self, found: float) -> bool:
        """Whether a number keeps the bound, before it is rounded."""
        return found <= self.bound if self.most else found >= self.bound

    def written(self, number: float) -> str:
        """The number as the page has it."""
        return f"{number:.0%}" if self.share else f"{number:.2f}"


SEPARATE, SHARED = "ppo-separate", "ppo-shared"
UNIFORM, RAGGED, LONG = "uniform", "ragged", "long"
ON_A_CPU = (
    Goal("PPO iteration, separate value model, TRL / ours", SEPARATE, RAGGED, speed_ratio, 1.9),
    Goal("PPO iteration, shared trunk, TRL / ours", SHARED, RAGGED, speed_ratio, 3.6),
    Goal("PPO iteration, separate value model, TRL / ours", SEPARATE, UNIFORM, speed_ratio, 1.15),
    Goal("PPO iteration, shared trunk, TRL / ours", SHARED, UNIFORM, speed_ratio, 1.9),
    *(Goal("generation, TRL / ours", SEPARATE, lengths, sampling_ratio, 2.5)
      for lengths in (UNIFORM, RAGGED)),
    *(Goal(f"{name}, TRL / ours", work, lengths, speed_ratio, bound)
      for work, name in (("sft", "SFT step"), ("reward", "reward-model step"))
      for lengths, bound in ((RAGGED, 1.5), (UNIFORM, 1.0))),
    *(Goal("update of PPO, share of the ceiling", SEPARATE, lengths, _update, 0.85, share=True)
      for lengths in (UNIFORM, RAGGED)),
    *(Goal(f"peak memory of PPO, {name}, ours / TRL", work, lengths, memory_share, 0.6,
           ("135M",), share=True, most=True)
      for work, name in ((SEPARATE, "separate value model"), (SHARED, "shared trunk"))
      for lengths in (UNIFORM, RAGGED)),
)  # fmt: skip
GPU_SIZES = ("135M", "1B")
ON_A_GPU = (
    *(Goal("decoding of 64 rows, share of the bandwidth", SEPARATE, lengths, _decoding, 0.5,
           GPU_SIZES, share=True) for lengths in (UNIFORM, LONG)),
    *(Goal("update of PPO, share of the ceiling", SEPARATE, lengths, _update, 0.4,
           GPU_SIZES, share=True) for lengths in (UNIFORM, RAGGED, LONG)),
    *(Goal("PPO iteration, separate value model, TRL / ours", SEPARATE, lengths, speed_ratio, 4.0,
           GPU_SIZES) for lengths in (UNIFORM, RAGGED)),
)  # fmt: skip
BYTES = (
    "| the same bytes twice (`pytest -m gpu tests/integration/test_gpu_repetition.py`) | – | – | – "
    "| – | – | yes | not measured | – |"
)
UNEQUAL = "†"
FEWER = "‡"
NOTES = {
    UNEQUAL: "The two sides' ragged responses were not of equal length.",
    FEWER: "TRL decoded fewer responses at a time than ours, which makes the number too large. Yes "
    "stands where the goal would be met even if TRL's generation took no longer for all of them "
    "than for so few, open where that cannot be said.",
}
TIMES = (speed_ratio, sampling_ratio)
RATIOS = (*TIMES, memory_share)
"""Numbers that compare both sides."""


def section(device: str, rows: Sequence[Row], told_beforehand: str) -> Iterator[str]:
    """Lines of Markdown: every goal of a device with each measurement of it, or none.

    Args:
        device: cpu or cuda.
        rows: what has been measured there.
        told_beforehand: the `ends` of rows in which both sides' lengths are the same.
    """
    yield f"| goal | {' | '.join(TITLES)} | wanted | measured | met |"
    yield f"|---{'|---' * len(TITLES)}|---:|---:|---|"
    seen = set[str]()
    for goal in ON_A_GPU if device == "cuda" else ON_A_CPU:
        sign = "at most" if goal.most else "at least"
        wanted = f"{sign} {goal.written(goal.bound)}"
        for size in goal.sizes:
            found = list(_measured(goal, size, rows))
            for row, number in found:
                marks = _marks(goal, row, told_beforehand)
                seen.update(marks)
                cells = [goal.what, *(row[name] for name in WHERE), wanted]
                written = " ".join([goal.written(number), *marks])
                yield f"| {' | '.join([*cells, written, _met(goal, row, rows, number)])} |"
            if not found:
                cells = [goal.what, size, goal.lengths, "–", "–", "–", wanted]
                yield f"| {' | '.join(cells)} | not measured | – |"
    if device == "cuda":
        yield BYTES
    for mark in (mark for mark in NOTES if mark in seen):
        yield ""
        yield f"{mark} {NOTES[mark]}"


def _measured(goal: Goal, size: str, rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """The rows that a goal is about, with its number."""
    asked = {"work": goal.work, "lengths": goal.lengths, "size": size}
    for row in rows:
        if asked.items() <= row.items() and (number := goal.number(row, rows)) is not None:
            yield row, number


def _marks(goal: Goal, row: Row, told_beforehand: str) -> list[str]:
    """What makes the number of a goal one of two different works."""
    marks = []
    if goal.number in RATIOS and not _equal(row, told_beforehand):
        marks.append(UNEQUAL)
    if goal.number in TIMES and goal.work.startswith("ppo") and row["decoded_by_trl"] < OURS:
        marks.append(FEWER)
    return marks


def _met(goal: Goal, row: Row, rows: Sequence[Row], number: float) -> str:
    """Whether the goal is met, by what can be said of it."""
    if not goal.met(number):
        return "**no**"
    at_worst = goal.number(row, [with_quickest_rollout(other) for other in rows])
    return "yes" if at_worst is not None and goal.met(at_worst) else "open"


def _equal(row: Row, told_beforehand: str) -> bool:
    """Whether both sides did the same work."""
    return row["lengths"] == UNIFORM or row["work"] in ("sft", "reward") or (
        row["ends"] == told_beforehand
    )  # fmt: skip
