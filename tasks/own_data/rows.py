"""Your own prompts, demonstrations, documents and preferences: how they are read and split."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from preferences.demonstrations import read_demonstrations, read_prompts
from preferences.formats.cells import decoded
from preferences.formats.files import container_of
from preferences.formats.reading import detect
from preferences.normal_text import normal_text
from preferences.reader import MalformedDataError, NumberedRow, Problems, read_rows
from preferences.records import Prompt, Row
from preferences.schemas import PREFERENCES, Field, Schema
from preferences.sources import rows_at
from preferences.splitting import asked, split_of
from tasks.params.prepare import FilesParams

PROMPTS = "prompts"
"""The salt for splitting prompts. Pairs are split without one: with the same salt, no training
prompt could be in the held-out pairs of a round."""

MIN_EVALUATED = 2
"""Fewest prompts of a split that policies are evaluated on: one has no interval."""


_COLUMNS = Schema(
    "rows",
    (
        Field(name="prompt_id", nullable=True),
        Field(name="prompt", kind="prompt"),
        Field(name="response"),
        Field(name="completion", kind="prompt"),
        Field(name="messages", kind="prompt"),
        Field(name="conversations", kind="prompt"),
        Field(name="text"),
    ),
)
"""What the cells of a CSV file hold, and where messages may have keys that are null."""


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


def own_prompts(path: Path) -> list[Row]:
    """The rows of `prepare.files.prompts`, each with an id.

    Raises:
        MalformedDataError: the data are missing, damaged, any row is not a prompt, or two different
            questions have one id.
    """
    places: list[str] = []

    def noted(path: Path, problems: Problems) -> Iterator[NumberedRow]:
        for numbered in _objects(path, problems):
            places.append(numbered.where)
            yield numbered

    rows = read_prompts(path, noted)
    _require_own_ids(rows, places)
    return rows


def _require_own_ids(prompts: Sequence[Row], places: Sequence[str]) -> None:
    """Rounds ask prompts whose ids they have not seen: a category would be asked but once."""
    problems, first = Problems(), dict[str, tuple[str, str]]()
    for row, place in zip(prompts, places, strict=True):
        this = question(row["prompt"])
        asked_first, where = first.setdefault(row["prompt_id"], (this, place))
        if asked_first != this:
            found = f"{row['prompt_id']!r} is that of another prompt, in {where}"
            problems.add_row(place, f'field "prompt_id": {found}')
    problems.check()


def own_demonstrations(path: Path, unread: set[str] | None = None) -> list[Row]:
    """The rows of `prepare.files.demonstrations`, each in one of the pipeline's two forms.

    The columns that are not read are added to `unread`.

    Raises:
        MalformedDataError: the data are missing, damaged, or any row is not a demonstration.
    """
    return read_demonstrations(path, _objects, unread)


def own_rows(path: Path, schema: Schema) -> list[Row]:
    """The rows of any kind of file, checked against `schema`.

    Raises:
        MalformedDataError: the data are missing, damaged, or any row breaks the schema.
    """
    problems, rows = Problems(), []
    for numbered in _objects(path, problems):
        rows.append(numbered.row)
        for problem in schema.problems(numbered.row):
            problems.add_row(numbered.where, problem)
    problems.check()
    return rows


def _objects(path: Path, problems: Problems) -> Iterator[NumberedRow]:
    """The rows of what `prepare.sources` reads, too, with cells interpreted."""
    for numbered in rows_at(path, problems):
        row = decoded(numbered.row, _COLUMNS) if numbered.cells else numbered.row
        yield replace(numbered, row=_COLUMNS.without_null_keys(row))


def read_preferences(path: Path) -> list[Row]:
    """The rows of `prepare.files.preferences`, which must be in our own format.

    Raises:
        MalformedDataError: the file is damaged, or in another format; the message names it.
    """
    try:
        return read_rows(path, PREFERENCES)
    except MalformedDataError as damaged:
        if (found := _other_format(path)) is None:
            raise
        raise MalformedDataError(
            [
                f"{path}: {found}; name the file under prepare.sources instead, which reads both: "
                f"sources: [{{path: {path}}}]"
            ],
            1,
        ) from damaged


def _other_format(path: Path) -> str | None:
    """What the first row was found in and what was expected; None where it is ours or unknown."""
    try:
        name = detect(path)
    except MalformedDataError:
        return None
    if name != "preferences":
        return f"found the format {name}, expected preferences as in data/README.md"
    if container_of(path) != "jsonl":
        return f"found the format {name}, expected JSON Lines, not {path.suffix}"
    return None
