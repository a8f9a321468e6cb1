"""What the guards of a round's reward model said, read from `results/reward/<round>`.

A round goes on in spite of them where `reward.probes` and `reward.over_optimisation` say `report`;
its policy then still has to pass the gate before production.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rlhf.intervals import Interval
from tasks.params.loading import Params
from tasks.running.outcome import StageEnd
from tasks.scoring.over_optimisation import Signals, alarms


def findings(root: Path, round_key: str, params: Params) -> list[str] | None:
    """One line for each probe that failed and each warning; None without a reward model.

    Raises:
        StageEnd: the files of the round are missing.
    """
    if params.reward.model == "none":
        return None
    probes = _probes(root, round_key)
    signals = probes.with_name("signals.json")
    for path in (probes, signals):
        if not path.is_file():
            text = f"{path}: missing; `dvc checkout` or `dvc pull` brings it"
            raise StageEnd("bad_input", text)
    with probes.open(encoding="utf-8", newline="") as file:
        failed = [
            f"probe {row['probe']}: {_shown(row)}, expected {_expected(row)}"
            for row in csv.DictReader(file)
            if row["passed"] != "true"
        ]
    said = {
        name: None if share is None else Interval(**share)
        for name, share in json.loads(signals.read_text(encoding="utf-8")).items()
    }
    return failed + alarms(
        clear(Signals(**said), params.reward.min_fresh_accuracy),
        min_accuracy=params.reward.min_fresh_accuracy,
        of_sft=params.rounds[round_key].policy == "models/sft",
    )


def _shown(row: Mapping[str, str]) -> str:
    if not row["won"]:
        return "no pairs"
    won, low, high = (f"{float(row[number]):.3f}" for number in ("won", "low", "high"))
    return f"{won} [{low}, {high}] of {row['pairs']} pairs"


def _expected(row: Mapping[str, str]) -> str:
    """What a probe that failed demands: its limit, or more pairs where it keeps to that."""
    low, high = (float(row[end] or "nan") for end in ("low", "high"))
    limit = float(row["limit"])
    misses = low <= limit if row["demand"] == "above" else high < limit
    wanted = "above" if row["demand"] == "above" else "that reaches"
    return f"an interval {wanted} {limit:g}" if misses else "more pairs, too few to tell"


def probed(root: Path, round_key: str) -> bool:
    """Whether a probe of the round's reward model had enough pairs to decide anything."""
    with _probes(root, round_key).open(encoding="utf-8", newline="") as file:
        return any(row["demand"] != "none" for row in csv.DictReader(file))


def clear(signals: Signals, min_accuracy: float) -> Signals:
    """Without an accuracy whose interval reaches the limit.

    A mean below the limit alone warns in many healthy rounds, a whole interval in few, and misses
    more of the rounds in which gold falls (docs/results/alarms.md).
    """
    accuracy = signals.fresh_accuracy
    if accuracy is not None and accuracy.high >= min_accuracy:
        return replace(signals, fresh_accuracy=None)
    return signals


def _probes(root: Path, round_key: str) -> Path:
    return root / "results" / "reward" / round_key / "probes.csv"
