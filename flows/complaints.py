"""What a server's log complains of, in one line each, for the person who looks at `make ui`."""

import re
from pathlib import Path

_START = re.compile(r"\d\d:\d\d:\d\d|\d{4}[-/]\d\d[-/]\d\d|[A-Z]+: |Traceback ")
"""How the first line of an entry begins: Prefect's, MLflow's, uvicorn's, or Python's own."""
_SERIOUS = re.compile(r"\b(ERROR|CRITICAL)\b|^Traceback |Webhook call failed")
"""Prefect only warns where nobody could be told how a run has ended (`flows.notices`)."""
_CHANGING = re.compile(r"\d+|0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}")
_PASSING = "database is locked"
"""SQLite's writers collide now and then; Prefect's services try again in their next round."""


class Complaints:
    """Reads a log as it grows."""

    def __init__(self, log: Path) -> None:
        """`log` need not be there yet."""
        self._log = log
        self._read = 0
        self._size = 0
        self._known: set[str] = set()

    def new(self) -> list[str]:
        """The errors since the last call, each kind once; those still being written wait."""
        size = self._log.stat().st_size if self._log.exists() else 0
        settled, self._size = size == self._size, size
        if size < self._read:
            self._read = 0
        if not settled or size == self._read:
            return []
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read(size - self._read).decode("utf-8", "replace")
        self._read = size
        return self.of(text)

    def of(self, text: str) -> list[str]:
        """The errors in `text` that are of a kind not seen before."""
        found: list[str] = []
        for entry in _entries(text):
            line = _line(entry)
            kind = _CHANGING.sub("#", line)
            if _PASSING not in "".join(entry) and kind not in self._known:
                self._known.add(kind)
                found.append(line)
        return found


def _entries(text: str) -> list[list[str]]:
    """The lines of each serious entry."""
    entries: list[list[str]] = []
    for line in text.splitlines():
        # The traceback that follows an error belongs to it.
        belongs = line.startswith("Traceback ") and entries and _SERIOUS.search(entries[-1][0])
        if _START.match(line) and not belongs:
            entries.append([line])
        elif entries and line.strip():
            entries[-1].append(line)
    return [entry for entry in entries if _SERIOUS.search(entry[0])]


def _line(entry: list[str]) -> str:
    """What happened, and what was raised last."""
    raised = [line for line in entry[1:] if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    message = re.sub(r"^.*\b(ERROR|CRITICAL|WARNING)\b[\s|:]*", "", entry[0])
    parts = [part.strip() for part in (message, raised[-1] if raised else "") if part.strip()]
    return " | ".join(part for part in parts if not part.startswith("Traceback"))[:400]
