"""Reads the pre-training corpus."""

from pathlib import Path

from preferences.reader import read_rows
from preferences.schemas import Field, Schema

CORPUS = Schema("corpus", (Field(name="text", filled=True),))


def read_corpus(path: Path) -> list[str]:
    """The documents of a JSON Lines file of `{"text"}`."""
    return [row["text"] for row in read_rows(path, CORPUS)]
