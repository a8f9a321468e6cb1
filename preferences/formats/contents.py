"""Whether data that are read twice are the same both times.

The gate decides by the number of a row and applies its decisions while reading the data again. A
file put in the place of the first one, of equal length or not, must not pass by its decisions.
"""

from hashlib import blake2b
from pathlib import Path

from preferences.reader import MalformedDataError
from preferences.records import Judgment, Sourced, Voted, compact_json


class Contents:
    """The number of pairs that were read, and a hash of all that they say."""

    def __init__(self) -> None:
        """Starts without pairs."""
        self.count = 0
        self._hash = blake2b(digest_size=16)

    def add(self, item: Sourced | Voted) -> None:
        """Includes a pair."""
        self.count += 1
        said: list[object] = [item.where]
        if isinstance(item, Sourced):
            said += item.preference.to_row().values()
        else:
            said += item.comparison.to_row().values()
            said += [_said(judgment) for judgment in item.judgments]
        self._hash.update(compact_json(said).encode("utf-8"))

    def check_same(self, before: "Contents | None", path: Path) -> None:
        """Refuses data that differ from those read before.

        Raises:
            MalformedDataError: names both numbers of pairs, if these differ.
        """
        if before is None or self._hash.digest() == before._hash.digest():
            return
        found = "other content than"
        if self.count != before.count:
            found = f"{self.count:,} pairs, {before.count:,}"
        raise MalformedDataError([f"{path}: changed while in use: {found} on the first pass"], 1)


def _said(judgment: Judgment) -> list[object]:
    return list(judgment.to_row().values())
