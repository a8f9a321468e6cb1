"""The allow-list: exceptions granted after a review, one JSON object per line.

`{"pair_id", "rule", "why"}` exempts this pair from this rule.
"""

from dataclasses import fields
from pathlib import Path

from preferences.params import Severities
from preferences.reader import read_rows
from preferences.schemas import Field, Schema

ALLOWED = Schema(
    "allow-lists",
    (
        Field(name="pair_id", filled=True),
        Field(name="rule", choices=tuple(rule.name for rule in fields(Severities))),
        Field(name="why", filled=True),
    ),
)

Allowed = frozenset[tuple[str, str]]
"""Pair ids, each with the rule from which it is exempt."""


def load_allowed(path: Path) -> Allowed:
    """The exceptions of a file.

    Raises:
        MalformedDataError: the file is missing or damaged.
    """
    return frozenset((row["pair_id"], row["rule"]) for row in read_rows(path, ALLOWED))
