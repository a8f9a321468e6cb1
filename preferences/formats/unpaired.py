"""TRL's unpaired format: `prompt`, `completion` and `label`, which is true if it is a good one.

Every good completion of a prompt is preferred to every bad one; where these are very many pairs, a
sample is taken. A completion without a counterpart gives no pair and is counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from preferences.formats.pairs import preference_of
from preferences.formats.sampling import pairs_across
from preferences.opening import USUAL_LIMITS, Limits, size_of
from preferences.reader import MalformedDataError, NumberedRow
from preferences.records import Preference, Row, Sourced, prompt_text
from preferences.schemas import Field, Schema

UNPAIRED = Schema(
    "completions",
    (
        Field(name="prompt", kind="prompt", filled=True),
        Field(name="completion", kind="prompt"),
        Field(name="label", kind="truth"),
        Field(name="prompt_id", filled=True, required=False, nullable=True),
    ),
    unknown="leave out",
)


@dataclass(frozen=True, slots=True)
class Opposed:
    """The pairs that completions form."""

    pairs: list[Sourced]
    alone: int
    """Completions without a counterpart."""
    left: int
    """Pairs that were left out because their prompt has too many."""


def pairs_of(rows: Iterable[NumberedRow], limits: Limits = USUAL_LIMITS) -> Opposed:
    """The pairs of all prompts.

    Raises:
        MalformedDataError: the rows are too large to be held until the last one is read.
    """
    groups: dict[str, tuple[list[NumberedRow], list[NumberedRow]]] = {}
    for numbered in held(rows, limits):
        good, bad = groups.setdefault(prompt_text(numbered.row["prompt"]), ([], []))
        (good if numbered.row["label"] else bad).append(numbered)
    pairs: list[Sourced] = []
    alone = left = 0
    for prompt, (good, bad) in groups.items():
        taken, more = pairs_across(good, bad, limits.pairs_of_prompt, prompt)
        pairs += [_opposed(better, worse) for better, worse in taken]
        left += more
        alone += 0 if good and bad else len(good) + len(bad)
    return Opposed(pairs, alone, left)


def _opposed(better: NumberedRow, worse: NumberedRow) -> Sourced:
    completions = better.row["completion"], worse.row["completion"]
    return Sourced(
        preference_of(better.row, better.row["prompt"], *completions),
        max(better.where, worse.where, key=lambda where: (len(where), where)),
    )


def held(rows: Iterable[NumberedRow], limits: Limits) -> Iterator[NumberedRow]:
    """The rows, whose sizes are added up because the caller keeps them.

    Raises:
        MalformedDataError: they are too large to be held in memory.
    """
    total = 0
    for numbered in rows:
        total += size_of(numbered.row)
        if total > limits.held_bytes:
            problem = (
                f"{numbered.where}: over {limits.held_bytes:,} bytes of rows, which this format "
                "holds in memory; split the data"
            )
            raise MalformedDataError([problem], 1)
        yield numbered


def unpaired_to_rows(preferences: Iterable[Preference]) -> Iterator[Row]:
    """A good and a bad completion per pair, each written only once."""
    written = set()
    for preference in preferences:
        for completion, label in ((preference.chosen, True), (preference.rejected, False)):
            key = (prompt_text(preference.prompt), completion, label)
            if key not in written:
                written.add(key)
                yield {
                    "prompt_id": preference.prompt_id,
                    "prompt": preference.prompt,
                    "completion": completion,
                    "label": label,
                }
