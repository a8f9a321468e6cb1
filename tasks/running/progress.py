"""Progress for people: a bar with rate and remaining time in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from tqdm import tqdm

from tasks.running.saying import say

Item = TypeVar("Item")
Batch = TypeVar("Batch", bound=Sized)

LINE_EVERY_SECONDS = 10.0

WORTH_A_WARNING = 0.1
"""Share of rows that are left out."""


class Progress:
    """Counts steps of a known total and shows them with the newest metrics."""

    def __init__(self, name: str, total: int, unit: str, done: int = 0):
        """Show nothing yet; `done` steps were made before."""
        self._name, self._total, self._unit = name, total, unit
        self._first = self._done = done
        self._started = self._shown = time.monotonic()
        self._shown_done = -1
        self._bar = (
            tqdm(total=total, initial=done, desc=name, unit=unit, file=sys.stderr, leave=True)
            if sys.stderr.isatty()
            else None
        )

    def expect(self, count: int = 1) -> None:
        """Note that the total is larger by so many."""
        self._total += count
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.refresh()

    def step(self, count: int = 1, **metrics: float) -> None:
        """Note `count` more steps; a plain line comes out every ten seconds and at the end."""
        if count == 0:
            return
        self._done += count
        text = "  ".join(f"{name} {value:+.3g}" for name, value in metrics.items())
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(count)
            return
        now = time.monotonic()
        early = now - self._shown < LINE_EVERY_SECONDS and self._done < self._total
        if early or self._done == self._shown_done:
            return
        self._shown, self._shown_done = now, self._done
        elapsed = now - self._started
        rate = (self._done - self._first) / elapsed if elapsed else 0.0
        left = (self._total - self._done) / rate if rate else 0.0
        say(
            f"{self._name:<12} {self._done}/{self._total} {self._unit}  {text}  "
            f"{rate:.3g} {self._unit}/s, {left:.0f} s left\n"
        )

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()


def track(items: Iterable[Item], name: str, total: int, unit: str) -> Iterator[Item]:
    """Pass items on and show how many of them are done."""
    progress = Progress(name, total, unit)
    for item in items:
        yield item
        progress.step()
    progress.close()


def track_batches(batches: Iterable[Batch], progress: Progress, total: int) -> Iterator[Batch]:
    """Pass batches on and show how many of their `total` things are done.

    Of several processes this one passes on its own share; the others' are noted at its end.
    """
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress.step(len(batch))
    progress.step(total - done)


def say_left_out(count: int, total: int, what: str, why: str) -> None:
    """Report rows that were left out; as a warning if they are many."""
    if count:
        share = count / total
        warning = "WARNING: " if share > WORTH_A_WARNING else ""
        percent = f"{100 * share:.0f} %"
        say(f"{warning}{count} of {total} {what} left out ({percent}): {why}\n")
