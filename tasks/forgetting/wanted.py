"""What is to be forgotten, and whether a row or a text has it."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

from preferences.formats import pairs
from preferences.records import compact_json, composed, pair_id, prompt_text
from preferences.withdrawals import Tombstone, sources_of, texts_of, tombstone
from tasks.forgetting.readings import as_shown, readings

WantedKind = Literal["annotator", "source", "prompt", "matching"]
KINDS: tuple[WantedKind, ...] = get_args(WantedKind)
NAMES = ("annotator_id", "annotator", "workers", "completed_by")
"""Keys under which rows name annotators: of ours, of tables, of votes and of Label Studio."""
NAMED_BY_THE_GATE = ("weak_annotators", "weak annotators")
"""Keys under which verdict.json and statistics.json do; numbers there are no names."""
LABEL_STUDIO = "label-studio-"
"""What the name of somebody begins with whom Label Studio has by number alone."""
_RESPONSES = ("response_a", "response_b")
_SIDES = ("left", "right")
"""What Label Studio calls them."""

_OF_ENDS = re.compile(r"[$^]|\\[AZB]|\(\?<?[=!]")
"""What a pattern says of the ends of a text, or of what stands around it."""


class WantedError(ValueError):
    """What was asked for makes no sense; the message says why."""


@dataclass(frozen=True)
class Wanted:
    """One annotator, source, prompt or pattern."""

    kind: WantedKind
    value: str
    """A name, a prompt's id, or a regular expression."""
    texts: frozenset[str] = frozenset()
    """prompt: its texts, as soon as they are known."""
    pairs: frozenset[str] = frozenset()
    """The pairs that it is about, as soon as they are known."""

    def __post_init__(self) -> None:
        if not self.value.strip():
            raise WantedError(f"--{self.kind}: expected something to forget, found nothing")
        try:
            self.value.encode()
        except UnicodeEncodeError:
            raise WantedError(f"--{self.kind}: expected UTF-8, found {self.value!a}") from None
        if self.kind == "matching":
            try:
                matches_nothing = re.search(self.value, "") is None
            except re.error as error:
                raise WantedError(f"--matching: not a regular expression: {error}") from None
            if not matches_nothing:
                raise WantedError(
                    f"--matching: {self.value!r} matches every text, even an empty one"
                )

    def known(self, *, texts: frozenset[str], pairs: frozenset[str]) -> Self:
        """The same, also by these texts of the prompt, and by what says no more than a pair."""
        return replace(self, texts=texts, pairs=pairs)

    @property
    def by_people(self) -> bool:
        """Whether judgments are meant, so that the pairs themselves stay."""
        return self.kind in ("annotator", "source")

    def person(self, name: str, kind: str) -> bool:
        """Whether an annotator of the labelling store is meant."""
        return (self.kind == "annotator" and composed(name) == self._name) or (
            self.kind == "source" and kind == self.value
        )

    def said(self, text: str) -> bool:
        """Whether a text is meant, wherever it stands."""
        if self.kind == "matching":
            return self._pattern.search(text) is not None
        return text in self.texts or (self.kind == "prompt" and text == self.value)

    def row(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of a file says it, was said by it, or follows from that."""
        # A preference names no annotator: it goes with the judgments that decided the pair.
        if row.get("pair_id") in self.pairs and ("chosen" in row or not self.by_people):
            return True
        if self.kind == "source":
            judged = is_judgment(row) and row.get("kind") == self.value
            return judged or self.value in (*sources_of(row), row.get("path"))
        if self.kind == "annotator":
            return any(composed(name) == self._name for name in _annotators(row))
        said = [*strings(row), prompt_text(row["prompt"]) if "prompt" in row else ""]
        if self.kind == "prompt":
            said += [*map(_conversation, said), _implied_prompt(row)]
        return any(map(self.said, said))

    def pairs_of(self, row: Mapping[str, Any]) -> set[str]:
        """The pairs that go with a row that has it."""
        if self.by_people and not is_judgment(row):
            return _pairs_of_votes(row)
        known = "pair_id" in row and (self.by_people or "prompt" in row)
        return {row["pair_id"]} if known else set()

    def page(self, text: str) -> bool:
        """Whether a text that is no row, such as a report or a log, names or contains it."""
        return self.kind != "source" and any(map(self._read, readings(text)))

    def _read(self, text: str) -> bool:
        if self.kind == "annotator":
            text = composed(text)  # Most have no name at all, and a pattern is slow to say so.
            return self._name in text and self._token.search(text) is not None
        return self.said(text) or any(one in text for one in (*self._needles, *self._shown))

    def possible(self, content: str) -> bool:
        """Whether a file can hold it at all; a quick look before it is parsed."""
        if self.pairs and '"pair_id"' in content:
            return True
        if self.kind == "matching":
            # A backslash may hide what an escape stands for; a file has other ends than its texts.
            unclear = "\\" in content or _OF_ENDS.search(self.value) is not None
            return unclear or self._pattern.search(content) is not None
        if self.kind == "annotator" and not self._name.isascii():
            # As the name may be spelt, or escaped, in more ways than one.
            return "\\u" in content or self._name in composed(content)
        if self.kind == "annotator" and self._name.startswith(LABEL_STUDIO):
            return '"completed_by"' in content or self._name in content
        if self.kind == "prompt" and self._hidden(content):
            return True
        return any(one in content for one in self._needles)

    def _hidden(self, content: str) -> bool:
        """Whether the prompt may stand in a file in other letters than ours.

        A letter may be an escape, as most programs write it, and between the messages of a
        conversation there may be blanks. Label Studio has a conversation as a text.
        """
        talks = any(one.startswith("[{") for one in self.texts)
        has_turns = '"role"' in content or '"role\\"' in content
        return "\\u" in content or "\\/" in content or (talks and has_turns)

    def tombstones(self, row: Mapping[str, Any] | None, salt: str) -> Iterator[Tombstone]:
        """What keeps it away from now on; `row` is one that has it.

        Of a pattern only the texts that match are known afterwards, by their hashes. Where a policy
        wrote the text, the prompt that it answered is withdrawn.
        """
        judged = row is not None and is_judgment(row)
        if self.kind in ("annotator", "source"):
            name = self._name if self.kind == "annotator" else self.value
            yield tombstone(self.kind, name, salt)
        if self.kind == "prompt" and not judged:
            yield tombstone("prompt", self.value, salt)
        if row is None or self.by_people:
            return
        responses = [said for name in _RESPONSES if isinstance(said := row.get(name), str)]
        # A row of votes of one's own names no pair, and is data like others.
        answered = bool(responses) and "pair_id" in row
        if (answered or self.kind == "prompt") and "prompt" in row:
            yield tombstone("text", prompt_text(row["prompt"]), salt)
        for text in () if answered else (*texts_of(row), *responses):
            if self.said(text):
                yield tombstone("text", text, salt)
        reason = row.get("reason")
        if self.kind == "matching" and isinstance(reason, str) and self.said(reason):
            yield tombstone("text", reason, salt)

    @cached_property
    def _name(self) -> str:
        return composed(self.value)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.value)

    @cached_property
    def _token(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w.-]){re.escape(self._name)}(?![\w-])")

    @cached_property
    def _needles(self) -> tuple[str, ...]:
        """The value and the texts, as they are and as JSON writes them."""
        plain = {self.value, *self.texts}
        return tuple(sorted(plain | {compact_json(one)[1:-1] for one in plain}))

    @cached_property
    def _shown(self) -> tuple[str, ...]:
        """The texts as the report shows them."""
        return tuple(sorted(map(as_shown, self.texts)))


def is_judgment(row: Mapping[str, Any]) -> bool:
    """Whether a row is a judgment; in a file of one's own it may have no id."""
    return "judgment_id" in row or {"pair_id", "annotator_id", "choice"} <= row.keys()


def _pairs_of_votes(row: Mapping[str, Any]) -> set[str]:
    """The pair of a row of votes, or of a task of Label Studio; none of any other row."""
    data = row.get("data", row)
    if not isinstance(data, Mapping) or not isinstance(data.get("prompt"), str | list):
        return set()
    for names in (_RESPONSES, _SIDES):
        one, other = (data.get(name) for name in names)
        if isinstance(one, str) and isinstance(other, str):
            return {pair_id(data["prompt"], one, other)}
    return set()


def _conversation(text: str) -> str:
    """The conversation that a text of JSON holds, as ours are written; empty where it is none."""
    try:
        found = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return ""
    return prompt_text(found) if isinstance(found, list) else ""


def _implied_prompt(row: Mapping[str, Any]) -> str:
    """What both sides of a pair without a prompt begin with; empty for any other row."""
    if "prompt" in row or not {"chosen", "rejected"} <= row.keys():
        return ""
    of_hh = pairs.has_transcripts(row)
    schema, read = (pairs.HH, pairs.hh_from_row) if of_hh else (pairs.TRL, pairs.trl_from_row)
    try:
        return "" if any(schema.problems(row)) else prompt_text(read(row).prompt)
    except ValueError:  # It is no pair, or has half a character, which no text has.
        return ""


def _annotators(value: object) -> Iterator[str]:
    """The annotators that a JSON value names; a text or a choice may be somebody's name, too."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key in NAMES or key in NAMED_BY_THE_GATE:
                yield from strings(one)
                yield from _of_numbers(one) if key in NAMES else ()
            else:
                yield from _annotators(one)
    elif isinstance(value, list):
        for one in value:
            yield from _annotators(one)


def _of_numbers(value: object) -> Iterator[str]:
    """The names that people have here who are numbered there."""
    if isinstance(value, int):
        yield from (str(value), f"{LABEL_STUDIO}{value}")
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _of_numbers(one)


def strings(value: object) -> Iterator[str]:
    """All texts in a JSON value, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)
