"""Writes pairs in any known format."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from preferences.formats import label_studio, pairs, unpaired, votes
from preferences.formats.files import container_of, write_records
from preferences.formats.reading import Item
from preferences.judging import judge, standing
from preferences.reader import MalformedDataError
from preferences.records import (
    USUAL,
    Preference,
    Row,
    Sourced,
    Voted,
    compact_json,
    oriented,
    text_hash,
)
from preferences.row_values import RowError

OutName = Literal[
    "preferences",
    "trl",
    "trl_messages",
    "trl_implicit",
    "hh",
    "unpaired",
    "scored",
    "votes",
    "label_studio",
    "judgments",
]
OUT_FORMATS: tuple[OutName, ...] = get_args(OutName)

_PAIRS: dict[OutName, Callable[[Preference], Row]] = {
    "preferences": lambda preference: preference.to_row(),
    "trl": pairs.trl_to_row,
    "trl_messages": pairs.trl_messages_to_row,
    "trl_implicit": pairs.trl_implicit_to_row,
    "hh": pairs.hh_to_row,
    "scored": lambda preference: _scored(preference),
}
_VOTES: dict[OutName, Callable[[Voted], Row]] = {
    "votes": votes.votes_to_row,
    "label_studio": label_studio.label_studio_to_row,
}


class Unsettled:
    """Turns items into preferences and counts the pairs that votes leave without a winner."""

    def __init__(self) -> None:
        """Starts at zero."""
        self.ties = 0
        self.skipped = 0

    def settle(self, items: Iterable[Item], *, keep_ties: bool = False) -> Iterator[Sourced]:
        """The items that are, or by majority become, preferences.

        Ties, which are votes without a majority or rows with label ½, are counted and left out; or
        with `keep_ties` all of them are rows with label ½.
        """
        for item in items:
            if isinstance(item, Sourced):
                if keep_ties or not item.preference.is_tie:
                    yield item
                else:
                    self.ties += 1
                continue
            judged = judge([item.comparison], item.judgments, weights={}, keep_ties=keep_ties)
            self.ties += judged.ties
            self.skipped += judged.skipped + judged.unjudged
            for row in judged.rows:
                yield Sourced(row.preference, item.where)


def write_items(path: Path, items: Iterable[Item], to: OutName) -> Unsettled:
    """Writes all items to `path`; ties only if the format can express them.

    Raises:
        MalformedDataError: a pair cannot be written in this format.
    """
    unsettled = Unsettled()
    if to == "judgments":
        _write_judgments(path, items)
    elif to in _VOTES:
        write = _VOTES[to]
        write_records(path, (write(_final(as_votes(item))) for item in items))
    elif to == "unpaired":
        preferences = (sourced.preference for sourced in unsettled.settle(items))
        write_records(path, unpaired.unpaired_to_rows(preferences))
    else:
        settled = unsettled.settle(items, keep_ties=to != "hh")
        write_records(path, _written(settled, _PAIRS[to]), USUAL)
    return unsettled


def as_votes(item: Item) -> Voted:
    """An item with its votes; a preference has one vote, by its source."""
    return item if isinstance(item, Voted) else votes.voted_of(item.preference, item.where)


def _written(rows: Iterable[Sourced], write: Callable[[Preference], Row]) -> Iterator[Row]:
    for sourced in rows:
        try:
            yield write(sourced.preference)
        except RowError as error:
            raise MalformedDataError([f"{sourced.where}: {error}"], 1) from None


def _scored(preference: Preference) -> Row:
    """Two responses with scores that differ by the margin, or with ranks if it is unknown."""
    # Scores would imply a margin that was never stated.
    worth: Row = {"ranks": [1, 2]}
    if preference.is_tie:
        worth = {"scores": [0.0, 0.0]}
    elif preference.margin > 0:
        worth = {"scores": [preference.margin, 0.0]}
    return {
        "prompt_id": preference.prompt_id,
        "prompt": preference.prompt,
        "responses": [preference.chosen, preference.rejected],
        **worth,
        "round": preference.round,
    }


def _final(voted: Voted) -> Voted:
    """With each annotator's newest judgment, oriented to the pair."""
    last = (oriented(judgment, voted.comparison) for judgment in standing(voted.judgments))
    return replace(voted, judgments=tuple(last))


def _write_judgments(folder: Path, items: Iterable[Item]) -> None:
    """A folder with comparisons.jsonl and judgments.jsonl."""
    joined: dict[str, Voted] = {}
    for voted in map(as_votes, items):
        known = joined.setdefault(voted.comparison.pair_id, voted)
        if known is not voted:
            joined[voted.comparison.pair_id] = _join(known, voted)
    for voted in joined.values():
        standing(voted.judgments)  # Refuses what could not be read back.
    rows = [vote.to_row() for voted in joined.values() for vote in voted.judgments]
    write_records(
        folder / "comparisons.jsonl", (voted.comparison.to_row() for voted in joined.values())
    )
    write_records(folder / "judgments.jsonl", rows)


def _join(known: Voted, other: Voted) -> Voted:
    """Merges the votes on one pair; an annotator of both is renamed, since both votes count."""
    taken = {vote.annotator_id for vote in known.judgments}
    names = {vote.annotator_id: vote.annotator_id for vote in other.judgments}
    for name in names:
        number = 2
        while names[name] in taken:
            names[name] = f"{name} {number}"
            number += 1
        taken.add(names[name])
    votes = (
        replace(
            vote,
            judgment_id=text_hash(compact_json([vote.judgment_id, names[vote.annotator_id]])),
            annotator_id=names[vote.annotator_id],
            answer_a=vote.answer_a or text_hash(other.comparison.response_a),
        )
        for vote in other.judgments
    )
    return replace(known, judgments=(*known.judgments, *votes))


def check_name(path: Path, to: OutName) -> None:
    """Refuses an output file that cannot hold the format, before anything is read.

    Raises:
        MalformedDataError: the suffix is unknown, or is CSV for nested rows.
    """
    if to != "judgments" and to == "label_studio" and container_of(path) in ("csv", "tsv"):
        raise MalformedDataError([f"{path}: Label Studio's tasks do not fit into CSV"], 1)
