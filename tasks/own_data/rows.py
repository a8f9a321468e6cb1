"""Your own prompts and preferences: how they are read and split."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from preferences.formats.reading import detect
from preferences.normal_text import normal_text
from preferences.reader import MalformedDataError, read_rows
from preferences.records import Prompt, Row
from preferences.schemas import PREFERENCES
from preferences.splitting import asked, split_of
from tasks.params.prepare import FilesParams

PROMPTS = "prompts"
"""The salt for splitting prompts. Pairs are split without one: with the same salt, no training
prompt could be in the held-out pairs of a round."""

MIN_EVALUATED = 2
"""Fewest prompts of a split that policies are evaluated on: one has no interval."""


def own_split(prompt: Prompt, files: FilesParams) -> str:
    """`test`, `heldout` or `train`, by a hash that is independent of how pairs are split."""
    outside = files.test_fraction + files.heldout_fraction
    if split_of(prompt, heldout_fraction=files.test_fraction, salt=PROMPTS) == "heldout":
        return "test"
    side = split_of(prompt, heldout_fraction=outside, salt=PROMPTS)
    return "heldout" if side == "heldout" else "train"


def question(prompt: Prompt) -> str:
    """What distinguishes prompts for the gate: not case, white space or form."""
    return normal_text(asked(prompt))


def distinct(prompts: Iterable[Row]) -> list[Row]:
    """The first row of each question: asked again, it would count as another one."""
    first: dict[str, Row] = {}
    for row in prompts:
        first.setdefault(question(row["prompt"]), row)
    return list(first.values())


def read_preferences(path: Path) -> list[Row]:
    """The rows of `prepare.files.preferences`, which must be in our own format.

    Raises:
        MalformedDataError: the file is damaged, or in another format; the message names it.
    """
    try:
        return read_rows(path, PREFERENCES)
    except MalformedDataError as damaged:
        if (name := _other_format(path)) is None:
            raise
        raise MalformedDataError(
            [
                f"{path}: found the format {name}, expected preferences as in data/README.md; "
                "name the file under prepare.sources instead, which reads both: "
                f"sources: [{{path: {path}}}]"
            ],
            1,
        ) from damaged


def _other_format(path: Path) -> Any:
    """The known format that the first row is in, None where it is ours or none."""
    try:
        name = detect(path)
    except MalformedDataError:
        return None
    return None if name == "preferences" else name
