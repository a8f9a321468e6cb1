"""What a verification found: outputs that differ from a commit's, and what may explain it."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.params.loading import flatten
from tasks.reporting.summary import read_metrics
from tasks.workspace.dvc_lockfile import hashes, read_entries
from tasks.workspace.files import read_json

RECORD = Path("docs") / "default-run.json"
"""On what the committed run was made; `benchmarks/front_page.py` writes it."""
NUMBERS = (("gold", "gold"), ("win", "win_rate_vs_sft"), ("kl", "kl"))
"""Name in `metrics/` -> name in a results folder."""

Entries = Mapping[str, Mapping[str, Any]]
"""Stage -> its entry in a dvc.lock."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit says of its run."""

    entries: Entries
    metrics: Mapping[str, Mapping[str, float]]
    """Policy -> its numbers in `metrics/rounds`; `test` -> those of the test prompts."""
    environment: Mapping[str, Any] | None
    """What the run was made on; None where the commit does not say so of this dvc.lock."""


def read_committed(clone: Path) -> Committed:
    """Read a clone of the commit, before anything runs in it."""
    folder = clone / "metrics"
    metrics = {path.stem: _numbers(path) for path in sorted((folder / "rounds").glob("*.json"))}
    final = _numbers(folder / "final.json") if (folder / "final.json").is_file() else {}
    test = {name.removesuffix("_test"): final[name] for name in final if name.endswith("_test")}
    record = read_json(clone / RECORD) or {}
    of_this_lock = record.get("outputs") == outputs_digest(read_entries(clone))
    return Committed(
        entries=read_entries(clone),
        metrics={**metrics, "test": test} if test else metrics,
        environment=record.get("environment") if of_this_lock else None,
    )


def outputs_digest(entries: Entries) -> str:
    """Ten hex digits that stand for all outputs of some stages."""
    outs = sorted(
        (path, md5) for entry in entries.values() for path, md5 in hashes(entry.get("outs")).items()
    )
    return hashlib.sha256(json.dumps(outs).encode()).hexdigest()[:10]


def differing(stages: Sequence[str], before: Entries, now: Entries) -> dict[str, list[str]]:
    """Stage -> its outputs that differ, in the order of the stages; none for equal ones."""
    found = {}
    for stage in stages:
        was, found_now = (hashes(entries[stage].get("outs")) for entries in (before, now))
        if paths := [path for path in was if found_now.get(path) != was[path]]:
            found[stage] = paths
    return found


def changed_inputs(stage: str, before: Entries, now: Entries) -> list[str]:
    """Files and params of a stage that the commit has and its dvc.lock does not know.

    Outputs of other stages are none of them: that they differ is found at those stages.
    """
    made = [path for entry in before.values() for path in hashes(entry.get("outs"))]
    was, found = (_inputs(entries[stage], made) for entries in (before, now))
    return [name for name in {**was, **found} if str(was.get(name)) != str(found.get(name))]


def environment_lines(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """What of the environment is another one, a line each."""
    here = flatten(now)
    if before is None:
        listed = ", ".join(f"{name} {value}" for name, value in here.items())
        return [f"the commit does not say what its run was made on; here: {listed}"]
    there = flatten(before)
    lines = [
        f"{name}: {there.get(name, 'not recorded')}, here {here.get(name, 'not recorded')}"
        for name in {**there, **here}
        if str(there.get(name)) != str(here.get(name))
    ]
    return lines or ["the same as that of the commit's run, as far as it is recorded"]


def number_lines(metrics: Mapping[str, Mapping[str, float]], clone: Path) -> Iterator[str]:
    """Each number of the commit beside the one found, with its interval; none without one.

    A commit keeps means only (`metrics/`), so the interval is that of the run here.
    """
    for policy, numbers in metrics.items():
        found = _found(clone, policy) or {}
        for short, name in NUMBERS:
            estimate = found.get(name)
            if short in numbers and estimate is not None:
                yield f"{policy:<6}{short:<6}{numbers[short]:>7g}, here {_with_interval(estimate)}"


def _inputs(entry: Mapping[str, Any], made: Sequence[str]) -> dict[str, Any]:
    deps = {
        path: md5
        for path, md5 in hashes(entry.get("deps")).items()
        if not any(out == path or out.startswith(f"{path}/") for out in made)
    }
    params = entry.get("params", {})
    return deps | {
        f"{path}: {key}": value for path in params for key, value in flatten(params[path]).items()
    }


def _numbers(path: Path) -> dict[str, float]:
    content: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _found(clone: Path, policy: str) -> dict[str, Any] | None:
    places = {"sft": "results/baseline", "test": "results/test"}
    return read_metrics(clone / places.get(policy, f"results/evaluate/{policy}"))


def _with_interval(estimate: Mapping[str, float]) -> str:
    interval = f" [{estimate['low']:.3g}, {estimate['high']:.3g}]" if "low" in estimate else ""
    return f"{estimate['mean']:.3g}{interval}"
