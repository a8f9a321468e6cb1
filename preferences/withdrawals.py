"""What was withdrawn and must stay so: tombstones that say nothing of whom or what they are for.

A tombstone is a salted hash (HMAC-SHA-256) of a kind and a value, one JSON object per line:
`{"kind", "salt", "hash"}`. Kinds: `annotator` and `source` by name, `prompt` by its id, `text` by
any whole text of a row, a turn of a conversation among them. `prepare` and `label` leave out what
has one, wherever it comes from again, and so does the export of the labelling store.
"""

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from preferences.records import Judgment, prompt_text, spellings

WITHDRAWN_TEXTS = "data/withdrawn/texts.jsonl"
"""Read by `prepare`."""
WITHDRAWN_JUDGMENTS = "data/withdrawn/judgments.jsonl"
"""Read by `label`, and by `prepare` for votes in own sources."""

Kind = Literal["annotator", "source", "prompt", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_TEXT_FIELDS = (
    *("prompt", "response", "chosen", "rejected", "text"),
    *("messages", "completion", "responses"),
)
_WORDS = ("content", "value", "text")
"""Keys of a turn under which people have what was said."""
_DIGITS = 32

RowLike = TypeVar("RowLike", bound=Mapping[str, Any])


class WithdrawalsError(ValueError):
    """A file of withdrawals that cannot be trusted; names the file and the line."""


@dataclass(frozen=True, slots=True, order=True)
class Tombstone:
    """One thing that was withdrawn."""

    kind: Kind
    salt: str
    """Hex digits; random, the same in all lines of a repository."""
    hash: str

    def line(self) -> str:
        """The line for the file."""
        return json.dumps({"kind": self.kind, "salt": self.salt, "hash": self.hash}) + "\n"


def tombstone(kind: Kind, value: str, salt: str) -> Tombstone:
    """The tombstone of a name, an id or a text."""
    content = f"{kind}\0{value}".encode()
    return Tombstone(
        kind, salt, hmac.digest(bytes.fromhex(salt), content, "sha256").hex()[:_DIGITS]
    )


@dataclass(frozen=True, slots=True)
class Withdrawals:
    """The tombstones of a file."""

    tombstones: frozenset[Tombstone]

    @property
    def salts(self) -> list[str]:
        """The salts in use, one as a rule."""
        return sorted({one.salt for one in self.tombstones})

    def holds(self, kind: Kind, value: str) -> bool:
        """Whether this name, id or text was withdrawn."""
        return any(tombstone(kind, value, salt) in self.tombstones for salt in self.salts)

    def kept(self, rows: Iterable[RowLike]) -> list[RowLike]:
        """The rows of prompts, demonstrations, preferences or documents that were not withdrawn."""
        return [row for row in rows if not (self.tombstones and self._withdrawn(row))]

    def kept_judgments(self, judgments: Iterable[Judgment]) -> list[Judgment]:
        """The judgments that were not withdrawn, with their annotators or for what they say."""
        return [
            one
            for one in judgments
            if not self.tombstones
            or not (
                any(self.holds("annotator", name) for name in set(spellings(one.annotator_id)))
                or self.holds("source", one.kind)
                or (one.reason is not None and self.holds("text", one.reason))
            )
        ]

    def _withdrawn(self, row: Mapping[str, Any]) -> bool:
        return (
            self.holds("prompt", str(row.get("prompt_id", "")))
            or any(self.holds("source", part) for part in sources_of(row))
            or any(self.holds("text", text) for text in texts_of(row))
        )


def texts_of(row: Mapping[str, Any]) -> Iterator[str]:
    """The whole texts of a row: a conversation is one, and so is what is said in each turn."""
    for name in _TEXT_FIELDS:
        value = row.get(name)
        if isinstance(value, str | list):
            yield prompt_text(value)
        for turn in value if isinstance(value, list) else ():
            words = [turn.get(key) for key in _WORDS] if isinstance(turn, dict) else [turn]
            yield from (said for said in words if isinstance(said, str))


def sources_of(row: Mapping[str, Any]) -> list[str]:
    """The names in a row's `source`: kinds of annotators are joined by `+`."""
    source = str(row.get("source") or "")
    return [source, *source.split("+")] if "+" in source else [source]


def load_withdrawals(path: Path) -> Withdrawals:
    """The tombstones of a file; none where there is no file.

    Raises:
        WithdrawalsError: it is not UTF-8, or a line is not a tombstone.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except UnicodeDecodeError as error:
        raise WithdrawalsError(
            f"{path}: expected UTF-8, found byte {error.object[error.start]:#04x} at {error.start}"
        ) from None
    return Withdrawals(
        frozenset(
            _parsed(line, f"{path}:{number}")
            for number, line in enumerate(lines, start=1)
            if line.strip()
        )
    )


def _parsed(line: str, where: str) -> Tombstone:
    try:
        row = json.loads(line)
        found = Tombstone(row["kind"], row["salt"], row["hash"])
        bytes.fromhex(found.salt + found.hash)
    except (ValueError, KeyError, TypeError):
        found = None
    if found is None or found.kind not in KINDS or set(row) != {"kind", "salt", "hash"}:
        raise WithdrawalsError(
            f"{where}: expected a tombstone with kind ({', '.join(KINDS)}), salt and hash, "
            f"as `python -m tasks.forget` writes it; found {line[:80]!r}"
        )
    return found
