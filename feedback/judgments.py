"""What an annotator sees (`Pair`) and what an annotator says (`Judgment`), on disk and in memory.

Choices name answers, never sides of a screen: `a` is `response_a` of the pair, wherever it was
shown. Since a pair keeps its id when its answers trade places, a judgment may say by `answer_a` (a
hash of the text) which answer its `a` was; `oriented` turns it to the pair at hand.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

Choice = Literal["a", "b", "tie", "both_bad", "skip"]
Kind = Literal["human", "rubric", "reward_model", "llm", "import"]
ShownOrder = Literal["AB", "BA"]
Prompt = str | list[dict[str, str]]

CHOICES: tuple[str, ...] = get_args(Choice)
KINDS: tuple[str, ...] = get_args(Kind)
SHOWN_ORDERS: tuple[str, ...] = get_args(ShownOrder)
STRENGTHS = (1, 2, 3, 4)
"""Llama 2's steps: negligibly better or unsure, slightly better, better, significantly better."""

_MIRROR: dict[Choice, Choice] = {"a": "b", "b": "a"}


class JudgmentError(ValueError):
    """A judgment or pair that is not one; says where, what was found and what was expected."""


def _digest(value: object) -> str:
    """First 16 hex digits of the sha256 of the compact UTF-8 JSON of `value`."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def text_hash(text: str) -> str:
    """First 16 hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def pair_id(prompt: Prompt, response_a: str, response_b: str) -> str:
    """The id of a pair, from its content alone; the same when the two answers trade places."""
    return _digest([prompt, *sorted((response_a, response_b))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two answers to one prompt: all that an annotator may see, nothing of who wrote them."""

    pair_id: str
    round: str
    prompt: Prompt
    response_a: str
    response_b: str

    @classmethod
    def from_json(cls, row: Mapping[str, Any], *, where: str = "pair") -> Self:
        """Reads a row of comparisons.jsonl, without what an annotator must not see.

        Raises:
            JudgmentError: a field is missing or no text, or the id is not that of the content.
        """
        for name in ("pair_id", "round", "response_a", "response_b"):
            _expect_text(row, name, where)
        if not isinstance(row.get("prompt"), str | list):
            found = row.get("prompt")
            raise JudgmentError(f"{where}: prompt is {found!r}, expected a text or messages")
        pair = cls(**{field.name: row[field.name] for field in fields(cls)})
        expected = pair_id(pair.prompt, pair.response_a, pair.response_b)
        if pair.pair_id != expected:
            raise JudgmentError(
                f"{where}: pair_id is {pair.pair_id!r}, expected {expected!r} for this content"
            )
        return pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """One annotator's answer to one pair; the last five fields are there for people only."""

    judgment_id: str
    pair_id: str
    round: str
    annotator_id: str
    kind: Kind
    annotator_version: str
    """Hash of everything that steers a machine's judgment, or of the guidelines a person read."""
    choice: Choice
    strength: int | None
    """1 to 4 for the choices a and b, null where none was asked for and for all other choices."""
    shown_order: ShownOrder
    """AB: `response_a` stood on the left."""
    revision: int
    """1 for the first answer; an undo or a changed mind is a higher one, nothing is deleted."""
    answer_a: str | None = None
    """`text_hash` of the answer that was `response_a` when it was judged."""
    created_at: str | None = None
    """UTC, ISO 8601."""
    latency_ms: int | None = None
    """Time for which the pair was visible, not time on the wall."""
    reason: str | None = None
    """The annotator's words: why skipped, or why this choice; machines put their failure here."""
    guideline_hash: str | None = None

    @classmethod
    def of(cls, pair: Pair, **content: Any) -> Self:
        """A judgment of `pair` with its id filled in: the same content has the same id."""
        content = {"revision": 1, "strength": None} | content
        judgment = cls(judgment_id="", pair_id=pair.pair_id, round=pair.round, **content)
        return replace(judgment, judgment_id=content_id(judgment))

    def to_json(self) -> dict[str, Any]:
        """A row with the keys in the order of the fields; absent extras are left out."""
        row = asdict(self)
        return {key: row[key] for key in row if row[key] is not None or key == "strength"}

    @classmethod
    def from_json(cls, row: Mapping[str, Any], *, where: str = "judgment") -> Self:
        """Reads a row; fills in the id where the writer left it out.

        Raises:
            JudgmentError: an unknown key, a missing one, or a value outside its set.
        """
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(row) - set(names))
        if unknown:
            raise JudgmentError(f"{where}: unknown key {unknown[0]!r}, expected {', '.join(names)}")
        _check_values(row, where)
        judgment = cls(**({"judgment_id": "", "strength": None, "revision": 1} | dict(row)))
        return replace(judgment, judgment_id=judgment.judgment_id or content_id(judgment))


def content_id(judgment: Judgment) -> str:
    """The id of a judgment: who said what about which pair, how it was shown, in which revision."""
    row = judgment.to_json()
    extras = ("judgment_id", "created_at", "latency_ms", "reason", "guideline_hash")
    return _digest([row[key] for key in row if key not in extras])


def oriented(judgment: Judgment, pair: Pair) -> Judgment:
    """`judgment` as one of `pair`: turned round if the answers have traded places since.

    Raises:
        JudgmentError: it was given for other answers than those of `pair`.
    """
    was = judgment.answer_a
    moved = replace(judgment, round=pair.round)
    if was is not None and was != text_hash(pair.response_a):
        if was != text_hash(pair.response_b):
            raise JudgmentError(f"judgment {judgment.judgment_id}: answer_a is of another pair")
        moved = replace(
            moved,
            choice=_MIRROR.get(judgment.choice, judgment.choice),
            shown_order="BA" if judgment.shown_order == "AB" else "AB",
            answer_a=text_hash(pair.response_a),
        )
    return moved if moved == judgment else replace(moved, judgment_id=content_id(moved))


def latest(judgments: Iterable[Judgment]) -> list[Judgment]:
    """The highest revision per annotator and pair, in the order of first appearance."""
    newest: dict[tuple[str, str, str], Judgment] = {}
    for judgment in judgments:
        key = (judgment.round, judgment.pair_id, judgment.annotator_id)
        if key not in newest or newest[key].revision < judgment.revision:
            newest[key] = judgment
    return list(newest.values())


def read_judgments(path: Path) -> list[Judgment]:
    """All judgments of a JSON Lines file.

    Raises:
        JudgmentError: the file is missing, or a line is no judgment; names file and line.
    """
    return [Judgment.from_json(row, where=where) for where, row in json_rows(path)]


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a comparisons.jsonl, blind.

    Raises:
        JudgmentError: the file is missing, or a line is no comparison; names file and line.
    """
    return [Pair.from_json(row, where=where) for where, row in json_rows(path)]


def to_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON Lines: UTF-8, keys in the order given, a newline at the end of every row."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def json_rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """("file:line", object) of every line of a JSON Lines file; blank lines are left out.

    Raises:
        JudgmentError: the file is missing, not UTF-8, or a line is no JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise JudgmentError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise JudgmentError(f"{path}: not UTF-8 at byte {error.start}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise JudgmentError(f"{where}: not JSON ({error.msg})") from error
        if not isinstance(row, dict):
            raise JudgmentError(f"{where}: {type(row).__name__}, expected an object")
        yield where, row


def _expect_text(row: Mapping[str, Any], name: str, where: str) -> None:
    value = row.get(name)
    # An empty answer is data: the gate refuses it later, with its reason.
    empty_allowed = name.startswith("response_")
    if not isinstance(value, str) or not (value or empty_allowed):
        raise JudgmentError(f"{where}: {name} is {value!r}, expected a text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise JudgmentError(f"{where}: {name} has half of a surrogate pair, which is no text")


def _check_values(row: Mapping[str, Any], where: str) -> None:
    for name in ("pair_id", "round", "annotator_id", "annotator_version"):
        _expect_text(row, name, where)
    for name, allowed in (
        ("choice", CHOICES),
        ("kind", KINDS),
        ("shown_order", SHOWN_ORDERS),
    ):
        if row.get(name) not in allowed:
            expected = ", ".join(allowed)
            raise JudgmentError(f"{where}: {name} is {row.get(name)!r}, expected one of {expected}")
    strength = row.get("strength")
    if strength is not None and (isinstance(strength, bool) or strength not in STRENGTHS):
        raise JudgmentError(f"{where}: strength is {strength!r}, expected 1 to 4 or null")
    if strength is not None and row["choice"] not in ("a", "b"):
        raise JudgmentError(f"{where}: strength {strength} with choice {row['choice']!r}")
    revision = row.get("revision", 1)
    if not isinstance(revision, int) or isinstance(revision, bool) or revision < 1:
        raise JudgmentError(f"{where}: revision is {revision!r}, expected a number from 1")
