"""One line about a problem that one row of a file has, or many."""

import re
from dataclasses import dataclass, field

ROWS_SHOWN = 3
"""So many rows are named after the first."""

_NUMBER = re.compile(r"[0-9]+$")


@dataclass(slots=True)
class ProblemLine:
    """A problem, and how many rows of its file have it."""

    text: str
    count: int = 1
    _then: list[str] = field(default_factory=list)
    """Numbers of the next rows that have it; none where it was not found row by row."""

    def add(self, row: str | None) -> None:
        """Count it once more, in the row of this number."""
        self.count += 1
        if row is not None and len(self._then) < ROWS_SHOWN:
            self._then.append(row)

    def __str__(self) -> str:
        """The text, and which rows have it."""
        if not self._then:
            return self.text
        more = ", ..." if self.count > len(self._then) + 1 else ""
        rows = f"the first of {self.count:,} such rows, then {', '.join(self._then)}{more}"
        return f"{self.text} ({rows})"


def split_place(where: str) -> tuple[str, str | None]:
    """A place such as `data/x.jsonl:17` as what comes before its number, and the number."""
    number = _NUMBER.search(where)
    return (where, None) if number is None else (where[: number.start()], number.group())
