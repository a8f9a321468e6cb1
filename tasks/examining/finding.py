"""One problem that `make doctor` finds, and what mends it."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    problem: str
    fix: Callable[[], str] | None = None
    """Fixes it without losing anything and says how; None where a person has to decide."""
    remedy: str = ""
    """The command for a person to run, where there is no `fix`."""


def clear(how: Callable[[Path], object], folder: Path) -> str:
    """Mend by what clears a folder; what was done."""
    how(folder)
    return "removed"


def remove(path: Path, how: str) -> str:
    """Mend by removing a file or folder; what that did."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return how
