"""Whose judgments formed the final policy: the report's table of annotators."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class AnnotatorRow:
    """What one annotator said over all rounds; a judgment that was revised counts once."""

    annotator: str
    kind: str
    """Kind of annotator, such as `human`: the source that `tasks.lineage` names."""
    by_round: Counter[str] = field(default_factory=Counter)
    """Round -> judgments."""
    by_side: Counter[str] = field(default_factory=Counter)
    """`train` or `heldout`, as the pair's preference is used in that round, or `left out`: of ties,
    of pairs that annotators disagreed about, and of those that the gate refused."""


def read_annotators(root: Path, rounds: Sequence[str]) -> list[AnnotatorRow]:
    """The annotators of these rounds, who said most first."""
    found: dict[tuple[str, str], AnnotatorRow] = {}
    for key in rounds:
        folder = root / "data/rounds" / key
        sides = {
            row["pair_id"]: side
            for side in ("train", "heldout")
            for row in _rows(folder / f"preferences/{side}.jsonl")
        }
        judgments = {row["judgment_id"]: row for row in _rows(folder / "judgments.jsonl")}
        for judgment in judgments.values():
            who = judgment["kind"], judgment["annotator_id"]
            row = found.setdefault(who, AnnotatorRow(annotator=who[1], kind=who[0]))
            row.by_round[key] += 1
            row.by_side[sides.get(judgment["pair_id"], "left out")] += 1
    return sorted(found.values(), key=lambda row: (-row.by_round.total(), row.kind, row.annotator))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                row: dict[str, Any] = json.loads(line)
                yield row
