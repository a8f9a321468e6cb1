"""The allow-list: rows that somebody looked at and puts back, one JSON object per line.

`{"pair_id", "rule", "why"}` says that this rule does not apply to this pair.
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
"""Pair ids with the rule that does not apply to them."""


def load_allowed(path: Path) -> Allowed:
    """The exceptions of a file.

    Raises:
        MalformedDataError: the file is missing or damaged.
    """
    return frozenset((row["pair_id"], row["rule"]) for row in read_rows(path, ALLOWED))
