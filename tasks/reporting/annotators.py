"""What formed the final policy, by kind and source, and whose judgments did: two tables."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from preferences.records import NOBODY
from tasks.reporting.summary import read_metrics

EMBEDDED = "support desk"
"""Source of what `prepare` generates, as `tasks.lineage` names it."""


@dataclass(frozen=True, slots=True)
class FormedRow:
    """How many things of one kind, from one source, formed the final policy."""

    what: str
    source: str
    """File, data set or kind of annotator, as `tasks.lineage` names it."""
    number: int


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
    """The annotators of these rounds, who said most first.

    A skip that stands where a judgment was withdrawn is nobody's.
    """
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
            if judgment["kind"] == NOBODY:
                continue
            who = judgment["kind"], judgment["annotator_id"]
            row = found.setdefault(who, AnnotatorRow(annotator=who[1], kind=who[0]))
            row.by_round[key] += 1
            row.by_side[sides.get(judgment["pair_id"], "left out")] += 1
    return sorted(found.values(), key=lambda row: (-row.by_round.total(), row.kind, row.annotator))


def read_formed(
    root: Path,
    rounds: Sequence[str],
    files: Mapping[str, str | None],
    annotators: Sequence[AnnotatorRow],
) -> list[FormedRow]:
    """What these rounds' stages say of what they learnt from; what they do not say has no row.

    Args:
        root: the workspace.
        rounds: that formed the final policy, in order.
        files: `prepare.files`, by name; empty for the embedded support desk.
        annotators: of these rounds.

    Raises:
        MetricsError: a metrics file is not a JSON object.
    """
    tokens = _metric(root / "results/base", "tokens")
    shown = _metric(root / "results/sft", "demonstrations")
    asked, judged = _compared(root, rounds)
    found = [
        FormedRow("tokens of documents", files.get("corpus") or EMBEDDED, tokens),
        FormedRow("demonstrations", files.get("demonstrations") or EMBEDDED, shown),
    ]
    if annotators:  # Else the pairs of the rounds are sampled all the same, but nobody judges them.
        of = files.get("prompts") or EMBEDDED
        found.append(FormedRow("prompts of judged pairs", of, len(asked)))
    by_source = Counter[str]()
    unnamed = files.get("preferences") or EMBEDDED
    # Each round's preferences hold those of the rounds that it goes on from.
    validated = [key for key in rounds if (root / "data/rounds" / key / "preferences").is_dir()]
    for key in validated[-1:]:
        for side in ("train", "heldout"):
            for row in _rows(root / "data/rounds" / key / f"preferences/{side}.jsonl"):
                if row["pair_id"] not in judged:
                    by_source[row["source"] or unnamed] += 1
    found += [FormedRow("preferences to start with", *one) for one in by_source.most_common()]
    by_kind = Counter[str]()
    for annotator in annotators:
        by_kind[annotator.kind] += annotator.by_round.total()
    found += [FormedRow("judgments", *one) for one in by_kind.most_common()]
    return [row for row in found if row.number]


def _compared(root: Path, rounds: Sequence[str]) -> tuple[set[str], set[str]]:
    """The prompts and the pairs that these rounds sampled, by id."""
    prompts, pairs = set[str](), set[str]()
    for key in rounds:
        for row in _rows(root / "data/rounds" / key / "comparisons.jsonl"):
            prompts.add(row["prompt_id"])
            pairs.add(row["pair_id"])
    return prompts, pairs


def _metric(folder: Path, name: str) -> int:
    """A count of a stage's metrics, 0 where it has none."""
    return int((read_metrics(folder) or {}).get(name, 0))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                row: dict[str, Any] = json.loads(line)
                yield row
