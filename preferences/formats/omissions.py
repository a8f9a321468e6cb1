"""Reports what a conversion cannot carry over, so that nothing is lost silently."""

from collections.abc import Iterable, Iterator
from dataclasses import fields

from preferences.formats.files import read_records
from preferences.formats.pairs import TURN, trl_messages_to_row
from preferences.formats.reading import Item, Source
from preferences.formats.votes import strength_of
from preferences.formats.writing import OutName, as_votes
from preferences.judging import judge
from preferences.records import (
    USUAL,
    Judgment,
    Preference,
    Row,
    ShownOrder,
    Voted,
    compact_json,
    prompt_text,
    text_hash,
)
from preferences.splitting import is_transcript

_USUAL = {"margin": 0.0, "weight": 1.0, "source": "", "round": "", "split": "train", **USUAL}
_ALL = frozenset({"prompt_id", *_USUAL})
_VOTE = frozenset({"prompt_id", "round", "source", "chosen_finished", "rejected_finished"})
_HELD: dict[OutName, frozenset[str]] = {
    "preferences": _ALL,
    "trl": _ALL,
    "trl_messages": _ALL,
    "trl_implicit": _ALL,
    "hh": frozenset(),
    "unpaired": frozenset({"prompt_id"}),
    "scored": frozenset({"prompt_id", "round", "margin"}),
    "votes": _VOTE,
    "label_studio": _VOTE,
    "judgments": _VOTE | {"annotator_version"},
}
"""Format -> the fields of a preference that it can hold."""
_WINNERS: tuple[OutName, ...] = ("hh", "unpaired")
_VOTES: tuple[OutName, ...] = ("votes", "label_studio", "judgments")
_IMPORT = "import"
_OF_PEOPLE = ("created_at", "latency_ms", "reason", "guideline_hash")
"""Fields that only judgments by people have."""
_NOBODY = {_IMPORT, "scores"}
"""Annotators that the reader fills in where none is named; the first is also used as round and
source."""


class Omissions:
    """Records what one format cannot hold of a stream of items."""

    def __init__(self, to: OutName) -> None:
        """Starts without omissions."""
        self._to = to
        self._lost: set[str] = set()
        self._reformed = 0
        self._in_one = 0
        self._ties = 0
        self._pairs: set[str] = set()
        self._repeated = 0
        self._completions: dict[str, tuple[set[str], set[str]]] = {}

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items unchanged and records their omissions."""
        for item in items:
            if self._to in _VOTES:
                self._note_vote(item)
            else:
                self._note_pair(item)
            yield item

    def notes(self) -> list[str]:
        """What was lost or changed form, one note each."""
        more = sum(len(good) * len(bad) for good, bad in self._completions.values())
        more -= len(self._pairs) if self._completions else 0
        form = "turns" if self._to == "hh" else "messages"
        counts = (
            (f"prompts written as {form}", self._reformed),
            ("conversations left in one message", self._in_one),
            ("ties marked only by their label", self._ties),
            ("repeated pairs merged", self._repeated),
            ("additional pairs when read back", more),
        )
        lost = [f"not in {self._to}: {', '.join(sorted(self._lost))}"] if self._lost else []
        return lost + [f"{name}: {count:,}" for name, count in counts if count]

    def _note_vote(self, item: Item) -> None:
        voted = as_votes(item)
        if not isinstance(item, Voted):
            self._note_fields(item.preference)
        elif self._to != "judgments":
            self._lost.update(_lost_of(voted, "AB" if self._to == "label_studio" else None))
        if self._to == "judgments":
            self._note_repeated(voted.comparison.pair_id)

    def _note_pair(self, item: Item) -> None:
        if not isinstance(item, Voted):
            self._note_written(item.preference)
            return
        rows = judge([item.comparison], item.judgments, weights={}, keep_ties=True).rows
        for row in rows:
            names = {vote.annotator_id for vote in item.judgments}
            self._lost.update({"votes"} if len(item.judgments) > 1 else ())
            self._lost.update({"workers"} if names - _NOBODY else ())
            self._lost.update(
                name
                for name in _OF_PEOPLE
                if any(getattr(vote, name) is not None for vote in item.judgments)
            )
            self._note_written(row.preference)

    def _note_written(self, preference: Preference) -> None:
        if preference.is_tie and self._to in _WINNERS:
            return
        self._note_fields(preference)
        prompt = preference.prompt
        if self._to == "hh":
            self._reformed += not (isinstance(prompt, str) and prompt.endswith(TURN))
        elif self._to in ("trl_messages", "trl_implicit"):
            self._reformed += isinstance(prompt, str)
            self._in_one += is_transcript(trl_messages_to_row(preference)["prompt"])
        self._ties += preference.is_tie and self._to.startswith("trl")
        if self._to == "unpaired":
            good, bad = self._completions.setdefault(text_hash(prompt_text(prompt)), (set(), set()))
            good.add(text_hash(preference.chosen))
            bad.add(text_hash(preference.rejected))
            self._note_repeated(compact_json([preference.pair_id, text_hash(preference.chosen)]))

    def _note_repeated(self, pair: str) -> None:
        self._repeated += pair in self._pairs
        self._pairs.add(pair)

    def _note_fields(self, preference: Preference) -> None:
        held = _HELD[self._to]
        usual = _USUAL | {"prompt_id": text_hash(prompt_text(preference.prompt))}
        said = {name for name in usual if getattr(preference, name) not in (usual[name], _IMPORT)}
        lost = said - held
        if preference.is_tie:
            # The tie itself is kept, but equal scores have no margin.
            lost = (lost - {"label"}) | (said & {"margin"} if self._to == "scored" else set())
        if self._to == "judgments" and strength_of(preference):
            lost -= {"margin"}
        self._lost |= lost


def _lost_of(voted: Voted, shown: ShownOrder | None) -> Iterator[str]:
    """Fields that votes formats cannot hold and that differ from their defaults.

    `shown` is the order that the format implies: Label Studio's left is `response_a`.
    """
    comparison = voted.comparison
    yield from (name for name in ("policy_a", "policy_b") if getattr(comparison, name) != "unknown")
    usual: Row = {"kind": "import", "revision": 1, "annotator_version": ""}
    usual |= dict.fromkeys(("strength", *_OF_PEOPLE))
    for vote in voted.judgments:
        given = text_hash(compact_json([vote.pair_id, vote.annotator_id, vote.choice]))
        if vote.shown_order not in (shown, None):
            yield "shown_order"
        for name, value in {**usual, "judgment_id": given}.items():
            if getattr(vote, name) != value:
                yield name


def columns_not_read(source: Source) -> set[str]:
    """The columns of a source, once read, that occur in none of its items."""
    if source.format != "judgments":
        return source.left_out
    known = {one.name for one in fields(Judgment)}
    lines = read_records(source.path / "judgments.jsonl")
    return {name for line in lines for name, value in line.row.items() if value is not None} - known
