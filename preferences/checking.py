"""Pairs of any format through the gate, as `python -m preferences check` does it.

Importing this imports Great Expectations, so the command does it once the data are read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preferences import statistics
from preferences.allowing import Allowed
from preferences.baselines import bag_of_words
from preferences.formats.files import write_records
from preferences.formats.reading import Item
from preferences.formats.writing import Unsettled
from preferences.gate import GateResult, run_gate
from preferences.judging import Judged
from preferences.params import Severities, ValidateParams
from preferences.records import Preference, Prompt, Sourced, Voted
from preferences.report import escaped

STRICT = ValidateParams(min_rows=1, severities=Severities(near_duplicates="warn"))
"""What `check` asks of a file: the defaults of params.yaml, and near duplicates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The gate's result on some data, and numbers about the data as a whole."""

    gate: GateResult
    statistics: dict[str, Any]


def check_items(
    items: Sequence[Item],
    *,
    evaluation_prompts: Sequence[Prompt],
    allowed: Allowed,
    report_dir: Path,
) -> Checked:
    """Checks and reports; writes the gate's files, the cleaned data and statistics.json.

    Raises:
        JudgmentMismatchError: votes are not about the pair that they stand beside.
    """
    voted = [item for item in items if isinstance(item, Voted)]
    unsettled = Unsettled()
    rows = tuple(unsettled.settle(items))
    judged = Judged(rows=rows, ties=unsettled.ties, skipped=unsettled.skipped)
    gate = run_gate(
        judged,
        [],
        evaluation_prompts,
        STRICT,
        report_dir=report_dir,
        docs_dir=report_dir / "data_docs",
        allowed=allowed,
    )
    numbers = _statistics(rows, gate.train, gate.heldout, voted)
    for split, passed in (("train", gate.train), ("heldout", gate.heldout)):
        write_records(report_dir / f"{split}.jsonl", (row.to_row() for row in passed))
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    (report_dir / "statistics.json").write_text(text, encoding="utf-8")
    with (report_dir / "report.md").open("a", encoding="utf-8") as stream:
        stream.write(_to_markdown(numbers))
    return Checked(gate=gate, statistics=numbers)


def _statistics(
    rows: Sequence[Sourced],
    train: Sequence[Preference],
    heldout: Sequence[Preference],
    voted: Sequence[Voted],
) -> dict[str, Any]:
    units = statistics.units_of(voted)
    shares = {
        "longer wins": statistics.longer_wins(row.preference for row in rows),
        "longer wins, held out": statistics.longer_wins(heldout),
        "bag of words, held out": bag_of_words(train, heldout),
        "answer a wins": statistics.first_wins(voted),
    }
    numbers: dict[str, Any] = {name: each.to_json() for name, each in shares.items() if each}
    if voted:
        numbers["krippendorff alpha"] = statistics.krippendorff_alpha(units)
        numbers["fleiss kappa"] = statistics.fleiss_kappa(units)
        numbers["weak annotators"] = statistics.weak_annotators(units)
    return numbers


def lines_of(numbers: dict[str, Any]) -> list[str]:
    """The statistics in words, one per line."""
    lines = []
    for name, value in numbers.items():
        if isinstance(value, dict):
            text = "{mean:.3f} (95 % {low:.3f} to {high:.3f}, n {n:,})".format(**value)
        elif isinstance(value, list):
            text = ", ".join(value) or "none"
        else:
            text = "not defined" if value is None else f"{value:.3f}"
        lines.append(f"{name}: {text}")
    return lines


def _to_markdown(numbers: dict[str, Any]) -> str:
    return "\n".join(["", *(f"- {escaped(line)}" for line in lines_of(numbers)), ""])
