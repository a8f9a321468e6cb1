"""The rows of preference data, the id of a pair, and what a judgment means for a pair.

Fields are in the order of the files. A prompt is a text, or a list of messages
`{"role", "content"}` as chat models take it. A choice names a response, never a side of the screen:
`a` is `response_a`, wherever it was shown. A pair keeps its id when its responses trade places, so
a judgment may record in `answer_a` (a hash of the text) which response its `a` was; `oriented`
turns it to the pair at hand.

A response is finished when its writer ended it, and not when it was cut at a length limit. The text
does not tell, so a flag does; a file that leaves the flag out has finished responses.
"""

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, Self, get_args

Row = dict[str, Any]
"""One JSON object as read from or written to a file."""

Prompt = str | list[dict[str, str]]
Split = Literal["train", "heldout"]
TIE = 0.5
"""Label of a pair in which neither response is better."""
Choice = Literal["a", "b", "tie", "both_bad", "skip"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
NOBODY = "withdrawn"
"""Kind of annotator of a skip that stands where a judgment was withdrawn."""
ShownOrder = Literal["AB", "BA"]

_MIRROR: dict[Choice, Choice] = {"a": "b", "b": "a"}
_TURNED: dict[ShownOrder | None, ShownOrder | None] = {"AB": "BA", "BA": "AB", None: None}
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JudgmentError(ValueError):
    """A judgment or pair that cannot be used; says where, what was found and what was expected."""


class JudgmentMismatchError(JudgmentError):
    """Judgments and comparisons that do not belong together."""


def compact_json(value: object) -> str:
    """`value` as JSON without spaces and without escapes for non-ASCII letters."""
    return _COMPACT.encode(value)


def text_hash(text: str) -> str:
    """First 16 hex digits of the sha256 of a text, as judgments record it in `answer_a`."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def pair_id(prompt: Prompt, response_a: str, response_b: str) -> str:
    """The id of a pair, from its content alone; the same when the two responses trade places."""
    return text_hash(compact_json([prompt, *sorted((response_a, response_b))]))


def spellings(name: str) -> list[str]:
    """The name as it is, in Unicode's composed form (NFC) and in its decomposed one (NFD).

    Unicode spells é as one character or as two, which nobody can tell apart: one person has both.
    """
    return [name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))]


def composed(name: str) -> str:
    """The name in Unicode's composed form, in which names of one person are equal."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def prompt_text(prompt: Prompt) -> str:
    """The prompt as one text: itself, or its messages as compact JSON."""
    return prompt if isinstance(prompt, str) else compact_json(prompt)


class _Rowed:
    """A frozen dataclass that is written as one JSON object, keys in the order of its fields."""

    __slots__ = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Builds one from a row that its schema has checked; ignores other keys."""
        return cls(**{name: row[name] for name in _names(cls) if name in row})

    def to_row(self) -> Row:
        """The row for the file."""
        return {name: getattr(self, name) for name in _names(type(self))}


def _names(record: type) -> Iterator[str]:
    return (one.name for one in fields(record))


USUAL: Row = {
    "chosen_finished": True,
    "rejected_finished": True,
    "label": 1.0,
    "annotator_version": "",
}
"""Defaults for columns that a preference's row may omit: nothing cut, no doubt, no known
annotator."""
_OMITTED = ("label", "annotator_version")
"""Columns that our own rows omit where they have their default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference(_Rowed):
    """A pair of responses, one of which is better: what a reward model learns from."""

    pair_id: str
    prompt_id: str
    prompt: Prompt
    chosen: str
    rejected: str
    chosen_finished: bool = True
    """Whether `chosen` was ended by its writer, and not cut at a length limit."""
    rejected_finished: bool = True
    margin: float = 0.0
    """How much better, 0 to 1 in Llama 2's four steps; 0 if not stated."""
    weight: float = 1.0
    """How much the pair counts in training; 1 is normal."""
    source: str = ""
    """Kind of annotator, or the data set it comes from."""
    round: str = ""
    """Key of the round in which it was labelled; empty for initial data."""
    split: Split = "train"
    label: float = 1.0
    """Probability that `chosen` is better, from ½ (a tie) to 1."""
    annotator_version: str = ""
    """Versions of the annotators, joined by `+`: a model's hash, or that of the guidelines that
    people read. Empty if no annotator is known."""

    @property
    def is_tie(self) -> bool:
        """Whether neither response is better; `chosen` is then merely the first."""
        return self.label == TIE

    def to_row(self) -> Row:
        """The row for the file, without a label of 1 and without an empty version."""
        row = super(Preference, self).to_row()
        return {name: row[name] for name in row if name not in _OMITTED or row[name] != USUAL[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(_Rowed):
    """Two responses that await a judgment."""

    pair_id: str
    round: str
    prompt_id: str
    prompt: Prompt
    response_a: str
    response_b: str
    finished_a: bool = True
    """Whether `response_a` was ended by its writer, and not cut at a length limit."""
    finished_b: bool = True
    policy_a: str
    """Hash of the policy that wrote `response_a`."""
    policy_b: str


class Sides(Protocol):
    """What a judgment is about: two responses, in the order that gives `a` and `b` their meaning.

    A `Comparison` is one, and so is the blind `Pair` that annotators see.
    """

    @property
    def pair_id(self) -> str:
        """The pair's id."""
        ...

    @property
    def round(self) -> str:
        """Key of the round that asks for the judgment."""
        ...

    @property
    def response_a(self) -> str:
        """The response called a."""
        ...

    @property
    def response_b(self) -> str:
        """The response called b."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment(_Rowed):
    """What one annotator said about one pair; the last five fields are for people only."""

    judgment_id: str
    pair_id: str
    round: str
    annotator_id: str
    kind: str
    """human, rubric, reward_model, llm or import; imported data may name their own kind."""
    annotator_version: str = ""
    """Hash of everything that steers a machine's judgment, or of the guidelines that a person read;
    empty where the writer did not record it."""
    choice: Choice
    strength: int | None = None
    """1 (negligibly better) to 4 (significantly better) for the choices a and b, else null."""
    shown_order: ShownOrder | None = None
    """AB: `response_a` was shown first (on the left); None if it is not known."""
    revision: int
    """1 for the first judgment; an undo or a change of mind has a higher one. None is deleted."""
    answer_a: str | None = None
    """`text_hash` of the response that was `response_a` when it was judged, if recorded."""
    created_at: str | None = None
    """UTC, ISO 8601."""
    latency_ms: int | None = None
    """How long the pair was visible, not wall-clock time."""
    reason: str | None = None
    """The annotator's words: why skipped, or why this choice; machines put their failure here."""
    guideline_hash: str | None = None

    @classmethod
    def of(cls, pair: Sides, **content: Any) -> Self:
        """A judgment of `pair` with its id filled in: the same content has the same id."""
        content = {"revision": 1, "strength": None} | content
        judgment = cls(judgment_id="", pair_id=pair.pair_id, round=pair.round, **content)
        return replace(judgment, judgment_id=content_id(judgment))

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Builds one from a row that its schema has checked; names are composed."""
        return super(Judgment, cls).from_row({**row, "annotator_id": composed(row["annotator_id"])})

    def to_row(self) -> Row:
        """The row for the file; absent extras are left out, no strength or shown order is null."""
        row = super(Judgment, self).to_row()
        said = ("strength", "shown_order")
        return {name: row[name] for name in row if row[name] is not None or name in said}


def content_id(judgment: Judgment) -> str:
    """The id of a judgment: who said what about which pair, how it was shown, in which revision."""
    row = judgment.to_row()
    extras = ("judgment_id", "created_at", "latency_ms", "reason", "guideline_hash")
    return text_hash(compact_json([row[name] for name in row if name not in extras]))


def oriented(judgment: Judgment, pair: Sides) -> Judgment:
    """`judgment` as one of `pair`: mirrored if the responses have traded places since.

    Raises:
        JudgmentMismatchError: it was given for other responses than those of `pair`.
    """
    was = judgment.answer_a
    moved = judgment if judgment.round == pair.round else replace(judgment, round=pair.round)
    if was is not None and was != text_hash(pair.response_a):
        if was != text_hash(pair.response_b):
            raise JudgmentMismatchError(
                f"judgment {judgment.judgment_id}: answer_a is neither response of pair "
                f"{judgment.pair_id}"
            )
        moved = replace(
            moved,
            choice=_MIRROR.get(judgment.choice, judgment.choice),
            shown_order=_TURNED[judgment.shown_order],
            answer_a=text_hash(pair.response_a),
        )
    return moved if moved is judgment else replace(moved, judgment_id=content_id(moved))


def latest(judgments: Iterable[Judgment], *, per_round: bool = False) -> list[Judgment]:
    """The newest revision of each annotator's judgment of each pair, in order of appearance.

    A pair may be judged again in another round; with `per_round` both judgments stand.
    """
    newest: dict[tuple[str, ...], Judgment] = {}
    for judgment in judgments:
        key = (judgment.pair_id, judgment.annotator_id, *([judgment.round] if per_round else ()))
        if key not in newest or newest[key].revision < judgment.revision:
            newest[key] = judgment
    return list(newest.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """A comparison with all its judgments, as some formats have them in one row."""

    comparison: Comparison
    judgments: tuple[Judgment, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Sourced:
    """A preference and the location it was read from, such as `data/x.jsonl:17`."""

    preference: Preference
    where: str
