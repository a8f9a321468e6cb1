"""The rows that preference data are made of, and the id of a pair; field order is the file's.

A prompt is a text, or a list of messages `{"role", "content"}` as chat models take it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

Row = dict[str, Any]
"""One JSON object as read from or written to a file."""

Prompt = str | list[dict[str, str]]
Split = Literal["train", "heldout"]
TIE = 0.5
"""Label of a pair of which neither answer is the better one."""
Choice = Literal["a", "b", "tie", "both_bad", "skip"]


_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def compact_json(value: object) -> str:
    """`value` as JSON without spaces and with all letters as they are."""
    return _COMPACT.encode(value)


def pair_id(prompt: Prompt, a: str, b: str) -> str:
    """The id of a pair, from its content alone; the same when the two answers trade places."""
    content = compact_json([prompt, *sorted((a, b))])
    return hashlib.sha256(content.encode("utf-8")).hexdigest()[:16]


def prompt_text(prompt: Prompt) -> str:
    """The prompt as one text: itself, or its messages as compact JSON."""
    return prompt if isinstance(prompt, str) else compact_json(prompt)


class _Rowed:
    """A frozen dataclass that is written as one JSON object, keys in the order of its fields."""

    __slots__ = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Builds one from a row that its schema has checked; other keys are left out."""
        return cls(**{name: row[name] for name in _names(cls) if name in row})

    def to_row(self) -> Row:
        """The row for the file."""
        return {name: getattr(self, name) for name in _names(type(self))}


def _names(record: type) -> Iterator[str]:
    return (one.name for one in fields(record))


USUAL: Row = {"label": 1.0, "annotator_version": ""}
"""What a preference has where its row says nothing: no doubt, and no known annotator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference(_Rowed):
    """One pair of answers of which one is better: what a reward model learns from."""

    pair_id: str
    prompt_id: str
    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0
    """How much better, 0 to 1 in Llama 2's four steps; 0 where nobody said."""
    weight: float = 1.0
    """How much the pair counts in training; 1 is normal."""
    source: str = ""
    """Kind of annotator, or the data set it comes from."""
    round: str = ""
    """Key of the round that it was labelled in; empty for data one starts with."""
    split: Split = "train"
    label: float = 1.0
    """Probability that `chosen` is the better one, from ½, a tie, to 1."""
    annotator_version: str = ""
    """Which version of the annotators said so: a model's hash, or that of the guidelines that
    people read; `+` between several. Empty where no annotator is known."""

    @property
    def is_tie(self) -> bool:
        """Whether neither answer is the better one; `chosen` then only means the first."""
        return self.label == TIE

    def to_row(self) -> Row:
        """The row for the file; a label that leaves no doubt and an empty version are left out."""
        row = super(Preference, self).to_row()
        return {name: row[name] for name in row if name not in USUAL or row[name] != USUAL[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(_Rowed):
    """Two answers that wait for a judgment."""

    pair_id: str
    round: str
    prompt_id: str
    prompt: Prompt
    response_a: str
    response_b: str
    policy_a: str
    """Hash of the policy that wrote `response_a`."""
    policy_b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment(_Rowed):
    """What the gate uses of one annotator's answer to one comparison."""

    judgment_id: str
    pair_id: str
    round: str
    annotator_id: str
    kind: str
    choice: Choice
    revision: int
    strength: int | None = None
    """1 (negligibly better) to 4 (significantly better)."""
    answer_a: str | None = None
    """`text_hash` of the answer that was a when it was judged, where the writer noted it."""
    shown_order: Literal["AB", "BA"] = "AB"
    """Which answer the annotator saw first."""
    annotator_version: str = field(default="", compare=False)
    """Hash of what steers the annotator, where the writer noted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """A comparison and all that was said about it, as some formats have it in one row."""

    comparison: Comparison
    judgments: tuple[Judgment, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Sourced:
    """A preference and the place it was read from, such as `data/x.jsonl:17`."""

    preference: Preference
    where: str


def text_hash(text: str) -> str:
    """First 16 hex digits of the sha256 of a text, as judgments note it in `answer_a`."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
