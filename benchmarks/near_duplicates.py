"""Precision and recall of near duplicates, by an exhaustive search written apart from the gate's.

    python -m benchmarks.near_duplicates FILE [--questions N]

FILE is JSON Lines with `prompt`, `chosen` and `rejected`. Two sets are judged: its rows as they
are, and rows made of its real answers to one question, of which every second side is a copy with
some words replaced, so that many similarities lie just below and just above 0.8. The search
compares sets of word triples of every two rows whose prompts are alike; it shares no code with
`preferences.minhash`.
"""

import argparse
import json
import random
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from preferences.measures import Candidate, measure
from preferences.records import TIE, Preference, Sourced

ALIKE = 0.8
ROWS_PER_QUESTION = 120


class Row(NamedTuple):
    """One comparison."""

    prompt: str
    chosen: str
    rejected: str
    label: float = 1.0


def triples(text: str, known: dict[str, frozenset[tuple[str, ...]]]) -> frozenset[tuple[str, ...]]:
    """All three consecutive words of a text."""
    if text not in known:
        words = unicodedata.normalize("NFKC", text).casefold().split()
        words += [""] * (3 - len(words))
        known[text] = frozenset(zip(words, words[1:], words[2:], strict=False))
    return known[text]


def similar(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> bool:
    """Whether the Jaccard index is 0.8 or more."""
    small, large = sorted((len(one), len(other)))
    if small < ALIKE * large:
        return False
    common = len(one & other)
    return common >= ALIKE * (len(one) + len(other) - common) - 1e-12


def exhaustive(rows: Sequence[Row]) -> set[int]:
    """The rows with an earlier one of the same label that is alike in prompt and responses."""
    known: dict[str, frozenset[tuple[str, ...]]] = {}
    groups: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.prompt].append(number)
    prompts = sorted(groups, key=lambda prompt: len(triples(prompt, known)))
    found: set[int] = set()
    for place, one in enumerate(prompts):
        mine = triples(one, known)
        for other in prompts[place:]:
            if len(mine) < ALIKE * len(triples(other, known)):
                break
            if one == other or similar(mine, triples(other, known)):
                found |= _near(rows, groups[one], groups[other], known)
    return found


def _near(
    rows: Sequence[Row],
    ones: Sequence[int],
    others: Sequence[int],
    known: dict[str, frozenset[tuple[str, ...]]],
) -> set[int]:
    sides = {n: [triples(text, known) for text in rows[n][1:3]] for n in (*ones, *others)}
    return {
        max(one, other)
        for one in ones
        for other in others
        if one != other
        and rows[one].label == rows[other].label
        and (
            all(map(similar, sides[one], sides[other]))
            or (rows[one].label == TIE and all(map(similar, sides[one], sides[other][::-1])))
        )
    }


def gate(rows: Sequence[Row]) -> set[int]:
    """The rows that the gate finds."""
    candidates = (
        Candidate(Sourced(Preference(pair_id="", prompt_id="", **row._asdict()), ""), fresh=True)
        for row in rows
    )
    table = measure(candidates, near={"near_duplicates"}).table
    return set(table.index[table["near_duplicate"]].tolist())


def edited(rows: Sequence[Row], questions: int) -> list[Row]:
    """Rows of real answers to one question and of copies with up to an eighth of them replaced."""
    generator = random.Random(0)
    answers: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        answers[row.prompt] += [text for text in row[1:3] if len(text.split()) > 15]
    several = sorted(prompt for prompt, texts in answers.items() if len(set(texts)) > 1)
    made = []
    for prompt in generator.sample(several, min(questions, len(several))):
        texts = generator.sample(sorted(set(answers[prompt])), min(6, len(set(answers[prompt]))))
        for _ in range(ROWS_PER_QUESTION):
            one, other = generator.sample(texts, 2)
            label = generator.choice([1.0, 1.0, 1.0, TIE])
            made.append(Row(prompt, _copy(one, generator), _copy(other, generator), label))
    return made


def _copy(text: str, generator: random.Random) -> str:
    words = text.split()
    start = generator.randrange(len(words))
    length = generator.randint(0, len(words) // 8)
    words[start : start + length] = [f"new{generator.randrange(10**9)}" for _ in range(length)]
    return " ".join(words)


def report(name: str, rows: Sequence[Row]) -> None:
    """Prints what was found, and how much of it is right and how much is missing."""
    truth, found = exhaustive(rows), gate(rows)
    both = len(truth & found)
    precision, recall = both / max(1, len(found)), both / max(1, len(truth))
    sys.stdout.write(
        f"{name}: {len(rows):,} rows, near duplicates {len(truth):,}, found {len(found):,}, "
        f"precision {precision:.4f}, recall {recall:.4f}\n"
    )


def main() -> None:
    """Judges both sets of a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--questions", type=int, default=40)
    options = parser.parse_args()
    with options.file.open(encoding="utf-8") as stream:
        rows = [
            Row(*(row[name] for name in ("prompt", "chosen", "rejected")))
            for row in map(json.loads, stream)
        ]
    report("as it is", rows)
    report("edited answers", edited(rows, options.questions))


if __name__ == "__main__":
    main()
