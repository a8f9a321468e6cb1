"""What annotators see (`Pair`), and how pairs and judgments are read from and written to files."""

import json
import math
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, get_args

from preferences.records import (
    CHOICES,
    NOBODY,
    Judgment,
    JudgmentError,
    Prompt,
    ShownOrder,
    content_id,
    latest,
    oriented,
    pair_id,
)

Kind = Literal["human", "rubric", "reward_model", "llm", "import"]
KINDS: tuple[str, ...] = get_args(Kind)
SHOWN_ORDERS: tuple[str, ...] = get_args(ShownOrder)
STRENGTHS = (1, 2, 3, 4)
"""Llama 2's steps: negligibly better or unsure, slightly better, better, significantly better."""
LONGEST_MS = 10**15
"""The largest latency, which fits every database."""
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair; no file in UTF-8 can hold it
_MOST_LEVELS = 64
"""How deep a row may be nested; more than Python can write again is no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two responses to a prompt: all that an annotator may see, without their authors."""

    pair_id: str
    round: str
    prompt: Prompt
    response_a: str
    response_b: str
    finished_a: bool = True
    """Whether `response_a` was ended by its writer, and not cut at a length limit."""
    finished_b: bool = True

    @classmethod
    def from_json(cls, row: Mapping[str, Any], *, where: str = "pair") -> Self:
        """Reads a row of comparisons.jsonl, without what an annotator must not see.

        Raises:
            JudgmentError: a field is missing or of another type, or the id does not match the
                content.
        """
        for name in ("pair_id", "round", "response_a", "response_b"):
            _expect_text(row, name, where)
        for name in ("finished_a", "finished_b"):
            if not isinstance(found := row.get(name, True), bool):
                raise JudgmentError(f"{where}: {name} is {found!r}, expected true or false")
        _expect_prompt(row.get("prompt"), where)
        pair = cls(**{field.name: row[field.name] for field in fields(cls) if field.name in row})
        expected = pair_id(pair.prompt, pair.response_a, pair.response_b)
        if pair.pair_id != expected:
            raise JudgmentError(
                f"{where}: pair_id is {pair.pair_id!r}, expected {expected!r} for this content"
            )
        return pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A judgment that was not accepted, and why."""

    judgment_id: str
    reason: str


def judgment_from_row(row: Mapping[str, Any], *, where: str = "judgment") -> Judgment:
    """Reads a row of judgments.jsonl strictly, the name composed; fills in the id if left out.

    Raises:
        JudgmentError: an unknown or missing key, or an invalid value.
    """
    names = [field.name for field in fields(Judgment)]
    unknown = sorted(set(row) - set(names))
    if unknown:
        raise JudgmentError(f"{where}: unknown key {unknown[0]!r}, expected {', '.join(names)}")
    _check_values(row, where)
    whole = row.get("strength") and int(row["strength"])  # Tables with gaps have 2.0 for 2.
    judgment = Judgment.from_row({"judgment_id": "", "revision": 1, **row, "strength": whole})
    return replace(judgment, judgment_id=judgment.judgment_id or content_id(judgment))


def read_judgments(path: Path) -> list[Judgment]:
    """All judgments of a JSON Lines file.

    Raises:
        JudgmentError: the file is missing, or a line is not a judgment; names file and line.
    """
    return [judgment_from_row(row, where=where) for where, row in json_rows(path)]


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a comparisons.jsonl, blind.

    Raises:
        JudgmentError: the file is missing, or a line is not a comparison; names file and line.
    """
    return [Pair.from_json(row, where=where) for where, row in json_rows(path)]


def consistent(
    judgments: Sequence[Judgment], pairs: Mapping[str, Pair]
) -> tuple[list[Judgment], list[Refusal]]:
    """The newest revisions, and refusals of all that contradict each other within one revision."""
    newest = {_said_by(one): one for one in latest(judgments, per_round=True)}
    rows: dict[tuple[str, ...], list[Judgment]] = defaultdict(list)
    for one in judgments:
        if one.pair_id in pairs and one.revision == newest[_said_by(one)].revision:
            rows[_said_by(one)].append(one)
    refused = []
    for key, same in rows.items():
        if len(same) > 1 and len({_answer(one, pairs[one.pair_id]) for one in same}) > 1:
            del newest[key]
            refused += [_contradicted(one) for one in same]
    return list(newest.values()), refused


def _said_by(judgment: Judgment) -> tuple[str, ...]:
    return judgment.pair_id, judgment.annotator_id, judgment.round


def _answer(judgment: Judgment, pair: Pair) -> tuple[str, int | None] | None:
    """What it says of the pair; None if it is one of other responses."""
    try:
        return oriented(judgment, pair).choice, judgment.strength
    except JudgmentError:
        return None


def _contradicted(judgment: Judgment) -> Refusal:
    who, key = judgment.annotator_id, judgment.pair_id
    reason = f"{who} judges pair {key} differently in another row, expected one"
    return Refusal(judgment_id=judgment.judgment_id, reason=reason)


def to_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON Lines with keys in the given order and a newline after every row."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def json_rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """("file:line", object) for every line of a JSON Lines file, except blank ones.

    Raises:
        JudgmentError: the file is missing or not UTF-8, or a line is not a JSON object, is nested
            more than 64 levels deep, or has a number or half a character that no file can hold.
    """
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = decoded(line, path, number)
        if not isinstance(row, dict):
            raise JudgmentError(f"{where}: {type(row).__name__}, expected an object")
        if "\\ud" in line.lower() and _HALF.search(json.dumps(row, ensure_ascii=False)):
            raise JudgmentError(f"{where}: contains half a surrogate pair, expected valid text")
        yield where, row


def text_of(path: Path) -> str:
    """The text of a regular file, without its byte order mark; a named pipe might never end.

    Raises:
        JudgmentError: it is missing, not a regular file or not UTF-8.
    """
    try:
        if not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
            raise JudgmentError(f"{path}: is no regular file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise JudgmentError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise JudgmentError(f"{path}: not UTF-8 at byte {error.start}") from error


def decoded(text: str, path: Path, line: int | None = None) -> Any:
    """The JSON value in a line of a file, or in all of it.

    Raises:
        JudgmentError: it is not JSON, is nested more than 64 levels deep, or has a number that no
            file can hold; names file and line.
    """
    where = f"{path}:{line}" if line else str(path)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise JudgmentError(f"{path}:{line or error.lineno}: not JSON ({error.msg})") from error
    except JudgmentError as error:
        raise JudgmentError(f"{where}: {error}") from error
    except RecursionError:
        raise JudgmentError(f"{where}: nested more than {_MOST_LEVELS} levels deep") from None
    except ValueError:
        # The only other error that json raises: Python's limit on the digits of an integer.
        raise JudgmentError(f"{where}: expected a number of fewer digits") from None
    level = [value]
    for _ in range(_MOST_LEVELS + 1):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise JudgmentError(f"{where}: nested more than {_MOST_LEVELS} levels deep")
    return value


def _inside(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_constant(name: str) -> NoReturn:
    raise JudgmentError(f"not JSON ({name} is not a JSON number)")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise JudgmentError("expected a number that fits a 64-bit float")
    return number


def _expect_text(row: Mapping[str, Any], name: str, where: str) -> None:
    value = row.get(name)
    # An empty response is data: the gate refuses it later, with a reason. A version may be unknown.
    empty_allowed = name.startswith("response_") or name == "annotator_version"
    if not isinstance(value, str) or not (value or empty_allowed):
        raise JudgmentError(f"{where}: {name} is {value!r}, expected a text")
    if _HALF.search(value):
        raise JudgmentError(f"{where}: {name} contains half a surrogate pair, expected valid text")


def _expect_prompt(prompt: object, where: str) -> None:
    messages = [prompt] if isinstance(prompt, str) else prompt
    kind = str if isinstance(prompt, str) else dict
    if not isinstance(messages, list) or not all(isinstance(one, kind) for one in messages):
        raise JudgmentError(f"{where}: prompt is {prompt!r}, expected a text or messages")
    if _HALF.search(json.dumps(messages, ensure_ascii=False)):
        raise JudgmentError(f"{where}: prompt contains half a surrogate pair, expected valid text")


def _check_values(row: Mapping[str, Any], where: str) -> None:
    for name in ("pair_id", "round", "annotator_id", "annotator_version"):
        _expect_text({"annotator_version": "", **row}, name, where)
    for name, allowed in (
        ("choice", CHOICES),
        ("kind", (NOBODY,) if row.get("kind") == NOBODY and row.get("choice") == "skip" else KINDS),
        ("shown_order", (*SHOWN_ORDERS, None)),
    ):
        if row.get(name) not in allowed:
            expected = ", ".join(map(str, allowed)).replace("None", "null")
            raise JudgmentError(f"{where}: {name} is {row.get(name)!r}, expected one of {expected}")
    strength = row.get("strength")
    if strength is not None and (isinstance(strength, bool) or strength not in STRENGTHS):
        raise JudgmentError(f"{where}: strength is {strength!r}, expected 1 to 4 or null")
    if strength is not None and row["choice"] not in ("a", "b"):
        raise JudgmentError(f"{where}: strength {strength} with choice {row['choice']!r}")
    _check_extras(row, where)
    revision = row.get("revision", 1)
    if not isinstance(revision, int) or isinstance(revision, bool) or not 1 <= revision < 1 << 31:
        raise JudgmentError(f"{where}: revision is {revision!r}, expected a number from 1")


def _check_extras(row: Mapping[str, Any], where: str) -> None:
    reason, latency = row.get("reason"), row.get("latency_ms")
    if reason is not None and (not isinstance(reason, str) or "\x00" in reason):
        raise JudgmentError(
            f"{where}: reason is {reason!r}, expected a text without U+0000 or null"
        )
    created = row.get("created_at")
    if created is not None and not _is_time(created):
        raise JudgmentError(
            f"{where}: created_at is {created!r}, expected ISO 8601 from 1970 on, or null"
        )
    # Written so that NaN is refused, too.
    if latency is not None and (
        isinstance(latency, bool)
        or not isinstance(latency, int | float)
        or not 0 <= latency <= LONGEST_MS
    ):
        raise JudgmentError(f"{where}: latency_ms is {latency!r}, expected 0 or more, or null")


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).year >= 1970
    except ValueError:
        return False
