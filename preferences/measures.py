"""What the gate looks at instead of the texts: digests and counts.

Great Expectations sees only this table. So its reports cannot show what people wrote (which may be
private, or harmful in a web page), and a row takes about a hundred bytes however long its responses
are, plus 400 during the search for near duplicates.
"""

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from types import MappingProxyType
from typing import IO
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from preferences.defects import (
    asks_for_markup,
    has_extra_turn,
    has_html,
    is_damaged,
    without_code,
)
from preferences.languages import LANGUAGES, language, words_of
from preferences.minhash import (
    ALIKE,
    SignatureList,
    jaccard,
    near_duplicates,
    near_pairs,
)
from preferences.normal_text import normal_text, visible_characters, without_invisible
from preferences.personal_data import OwnPatterns, personal_data
from preferences.records import Preference, Prompt, Sourced
from preferences.splitting import asked
from preferences.tokens import TokenLimit

WORD_BUCKETS = 1 << 12
"""Words of prompts are counted by hash, in this many buckets."""
_CHUNK = 20_000
_LANGUAGE_CODES = {name: code for code, name in enumerate(LANGUAGES)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A preference that enters the gate."""

    sourced: Sourced
    fresh: bool
    """False if it passed in an earlier round."""

    @property
    def preference(self) -> Preference:
        """The preference itself."""
        return self.sourced.preference


@dataclass(slots=True)
class PromptWords:
    """The number of different prompts that contain each word, fresh and earlier."""

    counts: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((2, WORD_BUCKETS), dtype=np.int64)
    )
    """Shape (2, buckets): earlier, fresh."""
    seen: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    """Digests of the prompts already counted: earlier, fresh."""

    def add(self, normal: str, prompt_digest: int, *, fresh: bool) -> None:
        """Counts the words of a prompt, given as `normal_text`, unless already counted."""
        if prompt_digest not in self.seen[fresh]:
            self.seen[fresh].add(prompt_digest)
            words = {code % WORD_BUCKETS for code in map(crc32, words_of(normal))}
            self.counts[int(fresh), list(words)] += 1

    def prompts(self, *, fresh: bool) -> int:
        """Number of different prompts."""
        return len(self.seen[fresh])


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that the gate knows about the data."""

    table: pd.DataFrame
    """One row of digests and counts per candidate: COLUMNS, near_duplicate and near_leak."""
    prompt_words: PromptWords
    personal: Mapping[str, int]
    """Kind of personal data -> number of rows with it."""


def digest(text: str) -> int:
    """A 64-bit hash of a text: among a million texts, a collision has odds of 1 to 30 million."""
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "big", signed=True)


def prompt_digest(prompt: Prompt) -> int:
    """Digest of a prompt that ignores case, white space and form (text, messages, transcript)."""
    return digest(normal_text(asked(prompt)))


COLUMNS = {
    "fresh": "bool",
    "heldout": "bool",
    "in_evaluation": "bool",
    "pair": "int64",
    "prompt": "int64",
    "chosen": "int64",
    "rejected": "int64",
    "chosen_characters": "int64",
    "rejected_characters": "int64",
    "margin": "float64",
    "tie": "bool",
    "label": "float64",
    "extra_turn": "bool",
    "damaged": "bool",
    "html": "bool",
    "personal": "bool",
    "language": "int8",
    "other_language": "bool",
    "over_limit": "bool",
    "same_tokens": "bool",
}


def measure(
    candidates: Iterable[Candidate],
    evaluation: Sequence[Prompt] = (),
    *,
    near: Collection[str] = (),
    alike: float = ALIKE,
    tokens: TokenLimit | None = None,
    own: OwnPatterns = MappingProxyType({}),
) -> Measured:
    """One row of digests and counts per candidate, in one pass over them.

    Args:
        candidates: read once, in chunks.
        evaluation: prompts that policies are evaluated on.
        near: `near_duplicates`, `near_leaks` or both; they take most of the time.
        alike: the similarity from which rows are near.
        tokens: the model's limit; without it no row exceeds a limit.
        own: the user's patterns of personal data.
    """
    wanted = _Wanted({prompt_digest(prompt) for prompt in evaluation}, near, tokens, own)
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as other:
        rows, prompts = SignatureList(3, file), _PromptSides(other)
        gathered = _Gathered(PromptWords(), rows, prompts, Counter())
        chunks = [
            pd.DataFrame.from_records(chunk, columns=list(COLUMNS)).astype(COLUMNS)
            for chunk in _chunks(_measured(each, wanted, gathered) for each in candidates)
        ]
        table = pd.concat(chunks, ignore_index=True) if chunks else _nothing()
        leaks = "near_leaks" in near and len(table)
        table["near_leak"] = prompts.leaks(table, evaluation, alike) if leaks else False
        labels = table["label"].to_numpy(dtype=np.float64)
        table["near_duplicate"] = (
            near_duplicates(rows, labels, alike=alike) if "near_duplicates" in near else False
        )
    return Measured(table, gathered.words, gathered.kinds)


def _chunks(rows: Iterator[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    while chunk := list(islice(rows, _CHUNK)):
        yield chunk


def _nothing() -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in COLUMNS.items()})


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is measured of each row."""

    evaluation: Collection[int]
    near: Collection[str]
    tokens: TokenLimit | None
    own: OwnPatterns


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What rows leave beside their row of the table."""

    words: PromptWords
    rows: SignatureList
    prompts: "_PromptSides"
    kinds: Counter[str]


def _measured(candidate: Candidate, wanted: _Wanted, gathered: _Gathered) -> tuple[object, ...]:
    preference = candidate.preference
    responses = (preference.chosen, preference.rejected)
    seen = tuple(map(without_invisible, responses))
    question = asked(preference.prompt)
    normal = normal_text(question)
    prompt = digest(normal)
    gathered.words.add(normal, prompt, fresh=candidate.fresh)
    if "near_duplicates" in wanted.near:
        gathered.rows.append((question, *responses))
    if "near_leaks" in wanted.near:
        gathered.prompts.add(question, prompt)
    spoken = [_LANGUAGE_CODES[language(text)] for text in (_said(preference.prompt), *responses)]
    personal = {kind for text in seen for kind in personal_data(text, wanted.own)}
    gathered.kinds.update(personal)
    limit = wanted.tokens
    view = None if limit is None else limit.view(preference)
    return (
        candidate.fresh,
        preference.split == "heldout",
        prompt in wanted.evaluation,
        digest(preference.pair_id),
        prompt,
        digest(normal_text(preference.chosen)),
        digest(normal_text(preference.rejected)),
        visible_characters(preference.chosen),
        visible_characters(preference.rejected),
        preference.margin,
        preference.is_tie,
        preference.label,
        any(map(has_extra_turn, seen)),
        any(map(is_damaged, responses)),
        any(map(has_html, seen)) and not asks_for_markup(question),
        bool(personal),
        spoken[1],
        len({code for code in spoken if code}) > 1,
        view is not None and limit is not None and view.tokens > limit.limit,
        view is not None and view.same,
    )


def _said(prompt: Prompt) -> str:
    """The text that decides the language of a prompt: the end of its last message, but code."""
    return without_code(prompt if isinstance(prompt, str) else prompt[-1]["content"])[-600:]


class _PromptSides:
    """Signatures of the distinct prompts, to find near duplicates across the sides."""

    def __init__(self, file: IO[bytes]) -> None:
        self._place: dict[int, int] = {}
        # Prompts are short, so an estimate alone would flag many that share their first words.
        self._prompts = SignatureList(1, file)

    def add(self, text: str, prompt: int) -> None:
        if prompt not in self._place:
            self._place[prompt] = len(self._place)
            self._prompts.append([text])

    def leaks(
        self, table: pd.DataFrame, evaluation: Sequence[Prompt], alike: float
    ) -> NDArray[np.bool_]:
        """Rows of the train side whose prompt is nearly a held-out or evaluation prompt."""
        place = table["prompt"].map(self._place).to_numpy(dtype=np.int64)
        heldout = table["heldout"].to_numpy(dtype=np.bool_)
        trained = np.unique(place[~heldout])
        digests = [prompt_digest(each) for each in evaluation]
        # A prompt of the data that is evaluated on is outside wherever it stands; of the others,
        # one that stands on both sides is another rule's.
        known = [self._place[digest] for digest in digests if digest in self._place]
        outside = np.union1d(np.setdiff1d(place[heldout], trained), known).astype(np.int64)
        texts = [
            asked(each)
            for each, digest in zip(evaluation, digests, strict=True)
            if digest not in self._place
        ]
        for text in texts:
            self._prompts.append([text])
        signatures = self._prompts.all()
        evaluated = len(self._place) + np.arange(len(texts))
        others = np.concatenate([outside, evaluated])
        near = np.zeros(len(signatures), dtype=np.bool_)
        for row, other in near_pairs(signatures[trained], signatures[others], alike=alike):
            prompt = trained[row]
            # Identical prompts fall under another rule.
            if not near[prompt] and prompt != others[other]:
                sets = self._prompts.shingles(prompt), self._prompts.shingles(others[other])
                near[prompt] = jaccard(*sets) >= alike
        leaks: NDArray[np.bool_] = near[place] & ~heldout
        return leaks
