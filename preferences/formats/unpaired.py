"""TRL's unpaired format: `prompt`, `completion` and `label`, which is true if it is a good one.

Every good completion of a prompt is preferred to every bad one. A completion without a counterpart
gives no pair and is returned separately, so that it can be counted.
"""

from collections.abc import Iterable, Iterator

from preferences.formats.pairs import preference_of
from preferences.reader import NumberedRow
from preferences.records import Preference, Row, Sourced, prompt_text
from preferences.schemas import Field, Schema

UNPAIRED = Schema(
    "completions",
    (
        Field(name="prompt", kind="prompt"),
        Field(name="completion"),
        Field(name="label", kind="truth"),
        Field(name="prompt_id", filled=True, required=False, nullable=True),
    ),
    unknown="leave out",
)


def pairs_of(rows: Iterable[NumberedRow]) -> tuple[list[Sourced], list[NumberedRow]]:
    """The pairs of all prompts, and the completions without a counterpart."""
    groups: dict[str, tuple[list[NumberedRow], list[NumberedRow]]] = {}
    for numbered in rows:
        good, bad = groups.setdefault(prompt_text(numbered.row["prompt"]), ([], []))
        (good if numbered.row["label"] else bad).append(numbered)
    pairs = [
        Sourced(
            preference_of(
                better.row, better.row["prompt"], better.row["completion"], worse.row["completion"]
            ),
            max(better.where, worse.where, key=lambda where: (len(where), where)),
        )
        for good, bad in groups.values()
        for better in good
        for worse in bad
    ]
    alone = [
        numbered
        for good, bad in groups.values()
        if not (good and bad)
        for numbered in (*good, *bad)
    ]
    return pairs, alone


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
