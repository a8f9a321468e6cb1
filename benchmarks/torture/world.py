"""What the trials share: the folder that they are made in, and how they are counted."""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.torture.children import run
from tests.stage_world import forget

EVERY_STEP = {"RLHF_CHECKPOINT_STEPS": "1"}


@dataclass(frozen=True)
class World:
    """A folder with all training stages run once, and what they made."""

    root: Path
    chance: random.Random

    def seconds(self, stage: str) -> float:
        """Duration of an uninterrupted run with a checkpoint at each step."""
        forget(self.root, stage)
        started = time.monotonic()
        assert run(self.root, stage, **EVERY_STEP) == 0
        return time.monotonic() - started

    def said(self) -> str:
        """What the last children wrote; empties the log."""
        path = self.root / "log.txt"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text


@dataclass
class Count:
    """Trials, those that did not end as they should, and what else was counted."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    """One line for each trial that did not hold: which it was, and what was found."""
    remark: str = ""

    @property
    def held(self) -> int:
        """Trials that ended as they should."""
        return self.tried - len(self.failures)

    def add(self, trial: str, wrong: Mapping[str, bool]) -> None:
        """Count a trial.

        Args:
            trial: how to find it again: stage, number, moment.
            wrong: what must not be -> whether it was so.
        """
        self.tried += 1
        if found := [words for words, so in wrong.items() if so]:
            self.failures.append(f"{trial}: {'; '.join(found)}")
