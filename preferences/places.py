"""Where the rows are that the rules found: all of them in a file, the first of each in reports."""

from collections.abc import Sequence
from typing import TextIO

from preferences.records import Sourced, compact_json

LISTED = 50
"""How many places of a rule the verdict, the summary and Data Docs list."""


class Places:
    """Collects the places of rows, one row at a time.

    Rows that rules only warn of get a line in a file, without their texts, as those that are set
    aside get one in the quarantine.
    """

    def __init__(self, warned: TextIO):
        """Starts without places; `warned` takes the lines and is the caller's to close."""
        self._warned = warned
        self.first: dict[str, list[str]] = {}
        """Rule -> the places of the first rows that it found."""

    def add(
        self, sourced: Sourced, origin: str, aside: Sequence[str], warned: Sequence[str]
    ) -> None:
        """Notes a row, and the rules that set it aside and that warn of it."""
        for rule in (*aside, *warned):
            known = self.first.setdefault(rule, [])
            if len(known) < LISTED:
                known.append(sourced.where)
        if warned:
            row = {
                "rules": list(warned),
                "origin": origin,
                "where": sourced.where,
                "pair_id": sourced.preference.pair_id,
            }
            self._warned.write(compact_json(row) + "\n")
