"""What the report shows, read from the files of the stages: curves, verdicts, samples, lineage."""

import csv
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MEMBER = re.compile(r"^member_\d+/")


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over all rounds, which follow one another on a common axis of steps."""

    points: tuple[tuple[float, float], ...]
    """(step since the start of the first round, value); steps without a value are omitted."""


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of a stage; where it runs in every round, those of all rounds that have run."""

    spans: tuple[tuple[str, float, float], ...]
    """(round or stage, first step, end) on the common axis."""
    by_metric: Mapping[str, Curve]


@dataclass(frozen=True, slots=True)
class Sample:
    """One held-out prompt with the responses before and after."""

    prompt: str
    before: str
    after: str
    before_finished: bool
    """Whether the response ended by itself, rather than at the length limit."""
    after_finished: bool
    gold_before: float | None
    gold_after: float | None
    score: float | None
    """The reward model's score of the response after."""


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Held-out pairs about which the reward model is about equally sure."""

    confidence: float
    """Mean probability that the model assigns to the response it prefers."""
    accuracy: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The data gate's verdict on a round's preferences."""

    round: str
    verdict: str
    fresh: int
    quarantined: int
    train: int
    heldout: int
    objections: tuple[str, ...]
    """Reasons to block first, then rules that found rows, then numbers out of bounds."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder that a model was made from."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class ModelNode:
    """One model and where it comes from, as recorded in its manifest."""

    path: str
    column: str
    """`base`, `sft` or the round."""
    kind: str
    """`policy` or `reward`."""
    weights: str
    """sha256 over the weight files."""
    inputs: tuple[Source, ...]


def read_curves(root: Path, rounds: Sequence[str]) -> Curves:
    """The rounds' `results/ppo/<round>/history.csv`, one after the other."""
    return _one_after_the_other((key, root / "results" / "ppo" / key) for key in rounds)


def read_losses(root: Path, rounds: Sequence[str]) -> dict[str, Curves]:
    """The curves of `base`, `sft` and `reward`; the report shows their losses."""
    results = root / "results"
    return {
        "base": _one_after_the_other([("base", results / "base")]),
        "sft": _one_after_the_other([("sft", results / "sft")]),
        "reward": _one_after_the_other((key, results / "reward" / key) for key in rounds),
    }


def read_verdicts(root: Path, rounds: Sequence[str]) -> list[GateVerdict]:
    """The rounds' `results/validate/<round>/verdict.json`, where the gate has run."""
    paths = {key: root / "results" / "validate" / key / "verdict.json" for key in rounds}
    return [_verdict(key, path) for key, path in paths.items() if path.exists()]


def read_samples(root: Path, final: str, count: int) -> tuple[list[Sample], int]:
    """At most `count` samples of the final policy, from the largest gain to the largest loss.

    Evenly spaced, so that the choice does not favour any policy; without gold scores, in the
    file's order. Also returns the total number of samples.
    """
    path = root / "results" / "evaluate" / final / "samples.jsonl"
    if not path.exists():
        return [], 0
    with path.open(encoding="utf-8") as lines:
        samples = [_sample(json.loads(line)) for line in lines if line.strip()]
    if all(s.gold_before is not None and s.gold_after is not None for s in samples):
        samples.sort(key=lambda s: (s.gold_before or 0.0) - (s.gold_after or 0.0))
    count = min(count, len(samples))
    picks = [round(i * (len(samples) - 1) / max(count - 1, 1)) for i in range(count)]
    return [samples[pick] for pick in picks], len(samples)


def read_reliability(root: Path, rounds: Sequence[str]) -> dict[str, list[ConfidenceBin]]:
    """Round -> the bins of its `results/reward/<round>/reliability.csv`, where it has any."""
    found = {}
    for key in rounds:
        rows = _read_csv(root / "results" / "reward" / key / "reliability.csv")
        if rows:
            found[key] = [
                ConfidenceBin(
                    confidence=float(row["confidence"]),
                    accuracy=float(row["accuracy"]),
                    low=float(row["low"]),
                    high=float(row["high"]),
                    pairs=int(row["pairs"]),
                )
                for row in rows
            ]
    return found


def read_lineage(root: Path, rounds: Sequence[str]) -> list[ModelNode]:
    """The existing models, in the order in which they were made."""
    places = [("base", "policy", "models/base"), ("sft", "policy", "models/sft")]
    for key in rounds:
        places.append((key, "reward", f"models/rounds/{key}/reward"))
        places.append((key, "policy", f"models/rounds/{key}/policy"))
    found = [_node(root, column, kind, path) for column, kind, path in places]
    return [node for node in found if node is not None]


def read_labels(root: Path, rounds: Sequence[str]) -> dict[str, tuple[Source, int]]:
    """Round -> its judgments file (hash as DVC has it) and how many judgments it holds."""
    labels = {}
    for key in rounds:
        path = root / "data" / "rounds" / key / "judgments.jsonl"
        if path.exists():
            content = path.read_bytes()
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            source = Source(path.relative_to(root).as_posix(), digest)
            labels[key] = (source, sum(bool(line.strip()) for line in content.splitlines()))
    return labels


def _one_after_the_other(folders: Iterable[tuple[str, Path]]) -> Curves:
    """The `history.csv` of each folder that has one, on a common axis of steps.

    Members of an ensemble train one after the other, so their curves are also the parts of one.
    """
    spans: list[tuple[str, float, float]] = []
    points: dict[str, list[tuple[float, float]]] = {}
    offset = 0.0
    for name, folder in folders:
        rows = _read_csv(folder / "history.csv")
        if not rows:
            continue
        steps = [float(row["step"]) for row in rows]
        for step, row in zip(steps, rows, strict=True):
            for metric, text in row.items():
                value = _number(text)
                if metric != "step" and value is not None:
                    for curve in dict.fromkeys((metric, _MEMBER.sub("", metric))):
                        points.setdefault(curve, []).append((offset + step - steps[0], value))
        end = offset + steps[-1] - steps[0] + 1
        spans.append((name, offset, end))
        offset = end
    return Curves(tuple(spans), {metric: Curve(tuple(found)) for metric, found in points.items()})


def _verdict(key: str, path: Path) -> GateVerdict:
    record = json.loads(path.read_text(encoding="utf-8"))
    rows = record["rows"]
    found = [
        f"{rule}: {entry['rows']:,} row{'' if entry['rows'] == 1 else 's'}"
        for rule, entry in record["rules"].items()
        if entry["rows"]
    ]
    beyond = [
        f"{name} out of bounds" for name, entry in record["numbers"].items() if not entry["kept"]
    ]
    return GateVerdict(
        round=key,
        verdict=record["verdict"],
        fresh=rows["fresh"],
        quarantined=rows["quarantined"],
        train=rows["train"],
        heldout=rows["heldout"],
        objections=(*record["reasons"], *found, *beyond),
    )


def _node(root: Path, column: str, kind: str, path: str) -> ModelNode | None:
    manifest = root / path / "manifest.json"
    if not manifest.exists():
        return None
    record = json.loads(manifest.read_text(encoding="utf-8"))
    files = {name: one for name, one in record["files"].items() if name.endswith(".safetensors")}
    if not files:  # Of a round without a reward model.
        return None
    weights = hashlib.sha256()
    for name, entry in sorted(files.items()):
        weights.update(f"{name} {entry['sha256']}\n".encode())
    inputs = (Source(source, str(digest)) for source, digest in sorted(record["inputs"].items()))
    return ModelNode(path, column, kind, weights.hexdigest(), tuple(inputs))


def _sample(row: Mapping[str, Any]) -> Sample:
    return Sample(
        prompt=_as_text(row["prompt"]),
        before=str(row["sft"]),
        after=str(row["response"]),
        before_finished=row["sft_finished"],
        after_finished=row["finished"],
        gold_before=row.get("gold_sft"),
        gold_after=row.get("gold"),
        score=row.get("score"),
    )


def _as_text(prompt: object) -> str:
    """A prompt as text; a conversation as one paragraph for each message."""
    if isinstance(prompt, str):
        return prompt
    assert isinstance(prompt, list)
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _read_csv(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _number(text: str | None) -> float | None:
    """A finite number, None for an empty field or one that is not finite."""
    if not text:
        return None
    value = float(text)
    return value if math.isfinite(value) else None
