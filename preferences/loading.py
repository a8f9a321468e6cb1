"""Reads the files of a round as records."""

from pathlib import Path

from preferences.reader import read_rows, stream_rows
from preferences.records import Comparison, Judgment, Preference, Prompt, Sourced
from preferences.schemas import COMPARISONS, CORPUS, JUDGMENTS, PREFERENCES, PROMPTS


def load_preferences(path: Path) -> list[Sourced]:
    """The preferences of a file, each with its location.

    Raises:
        MalformedDataError: the file is missing or damaged.
    """
    return [
        Sourced(Preference.from_row(numbered.row), numbered.where)
        for numbered in stream_rows(path, PREFERENCES)
    ]


def load_comparisons(path: Path) -> list[Comparison]:
    """The comparisons of a file.

    Raises:
        MalformedDataError: the file is missing or damaged.
    """
    return [Comparison.from_row(row) for row in read_rows(path, COMPARISONS)]


def load_judgments(path: Path) -> list[Judgment]:
    """The judgments of a file.

    Raises:
        MalformedDataError: the file is missing or damaged.
    """
    return [Judgment.from_row(row) for row in read_rows(path, JUDGMENTS)]


def load_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, without their ids.

    Raises:
        MalformedDataError: the file is missing or damaged.
    """
    return [row["prompt"] for row in read_rows(path, PROMPTS)]


def load_corpus(path: Path) -> list[str]:
    """The documents of a JSON Lines file of `{"text"}`.

    Raises:
        MalformedDataError: the file is missing or damaged.
    """
    return [row["text"] for row in read_rows(path, CORPUS)]
