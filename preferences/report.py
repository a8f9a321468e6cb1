"""The gate's output files: the verdict for programs, the quarantine, a summary for people.

They contain no times and no machine names, so the same data give the same bytes. The summary has
counts and names of rules, but no text from the data.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from preferences.overview import Number
from preferences.params import Severity
from preferences.records import Row, Sourced, compact_json
from preferences.rules import RULES

REASONS = {rule.name: rule.reason for rule in RULES}
DOCS = "data_docs"
FILES = (
    "report.md",
    "quarantine.jsonl",
    "warned.jsonl",
    "statistics.json",
    "train.jsonl",
    "heldout.jsonl",
    DOCS,
    "verdict.json",
)
"""All files of a report, in the order in which they appear."""
MAX_RULES = 3
"""Rules that a reason names."""


Origin = Literal["fresh", "earlier"]
"""Whether a row is of this round or of earlier ones."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found."""

    rule: str
    severity: Severity
    rows: tuple[int, ...]
    """Indexes of the rows that break the rule."""
    allowed: int = 0
    """Further rows that break it and that the allow-list exempts."""
    places: tuple[str, ...] = ()
    """Where the first rows are."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Number of rows per kind, of a rule that tells kinds apart."""

    def to_json(self) -> Row:
        """For verdict.json."""
        row: Row = {
            "severity": self.severity,
            "rows": len(self.rows),
            "allowed": self.allowed,
        }
        if self.kinds:
            row["kinds"] = dict(sorted(self.kinds.items()))
        if self.places:
            row["places"] = list(self.places)
        return row

    @property
    def unlisted(self) -> str:
        """How many rows have no place here, and the file of all; empty if every row has one."""
        rest = len(self.rows) - len(self.places)
        file = "warned.jsonl" if self.severity == "warn" else "quarantine.jsonl"
        return f"and {rest:,} more, all in {file}" if rest else ""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row that was quarantined."""

    rules: tuple[str, ...]
    """All rules it breaks."""
    origin: Origin
    sourced: Sourced

    def to_row(self) -> Row:
        """The line of quarantine.jsonl: reason and origin, then the unchanged preference."""
        return {
            "rules": list(self.rules),
            "reason": "; ".join(REASONS[rule] for rule in self.rules),
            "origin": self.origin,
            "where": self.sourced.where,
            **self.sourced.preference.to_row(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Where all rows went."""

    fresh: int
    earlier: int
    train: int
    heldout: int
    fresh_passed: int
    """Fresh rows among train and heldout."""
    quarantined: int
    ties: int
    skipped: int
    unjudged: int

    @property
    def rows_in(self) -> int:
        """This round's comparisons and the preferences of earlier rounds."""
        return self.fresh + self.earlier + self.ties + self.skipped + self.unjudged

    @property
    def rows_out(self) -> int:
        """Rows that passed, were quarantined, or gave no preference."""
        return (
            self.train + self.heldout + self.quarantined + self.ties + self.skipped + self.unjudged
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a reward model may be trained on the data, and why."""

    counts: Counts
    findings: tuple[Finding, ...]
    reasons: tuple[str, ...]
    numbers: tuple[Number, ...] = ()
    """About the data as a whole."""

    @property
    def passed(self) -> bool:
        """Whether nothing blocks the data."""
        return not self.reasons

    def to_json(self) -> Row:
        """The content of verdict.json."""
        return {
            "verdict": "passed" if self.passed else "blocked",
            "reasons": list(self.reasons),
            "rows": asdict(self.counts),
            "rules": {finding.rule: finding.to_json() for finding in self.findings},
            "numbers": {number.name: number.to_json() for number in self.numbers},
        }

    def metrics(self) -> dict[str, float]:
        """The same as flat metrics, for metrics.json."""
        counts = {f"rows/{name}": float(count) for name, count in asdict(self.counts).items()}
        rules = {f"rules/{finding.rule}": float(len(finding.rows)) for finding in self.findings}
        numbers = {f"numbers/{number.name}": number.value for number in self.numbers}
        return {"passed": float(self.passed), **counts, **rules, **numbers}

    def to_markdown(self) -> str:
        """A short summary, for a Prefect artifact or MLflow."""
        lines = [f"# Preference data: {'passed' if self.passed else 'BLOCKED'}", ""]
        lines += [f"- {escaped(reason)}" for reason in self.reasons]
        lines += [""] if self.reasons else []
        lines += [*self._what_became(), "", "| rows | |", "|---|---:|"]
        lines += [
            f"| {name.replace('_', ' ')} | {count:,} |"
            for name, count in asdict(self.counts).items()
        ]
        lines += ["", "| rule | what it does | rows that break it | meaning |"]
        lines += ["|---|---|---:|---|"]
        lines += [
            f"| {finding.rule} | {self._what_it_does(finding)} | {len(finding.rows):,} "
            f"| {escaped(REASONS[finding.rule])} |"
            for finding in self.findings
        ]
        if self.numbers:
            lines += ["", "| number | severity | within bounds | |", "|---|---|---|---|"]
        lines += [
            f"| {number.name} | {number.bound.severity} | {'yes' if number.kept else 'NO'} "
            f"| {escaped(number.sentence())} |"
            for number in self.numbers
        ]
        located = [finding for finding in self.findings if finding.places]
        lines += ["", "## Rows", ""] if located else []
        lines += [f"- {finding.rule}: {_listed(finding)}" for finding in located]
        return "\n".join([*lines, ""])

    def _what_became(self) -> list[str]:
        """What becomes of the preferences, in sentences."""
        counts = self.counts
        good = counts.train + counts.heldout
        if not good + counts.quarantined:
            return ["There are no preferences."]
        sides = f"{counts.train:,} to train on, {counts.heldout:,} held out"
        use = "Used" if self.passed else "Not set aside by any rule"
        said = [f"{use}: {good:,} of {rows(good + counts.quarantined)}, {sides}."]
        if counts.quarantined:
            aside = (
                f"{_rows_are(counts.quarantined)} set aside and not trained on, each with its rules"
            )
            harmless = " That is no error: the others pass without them." if self.passed else ""
            said.append(f"{aside} in quarantine.jsonl.{harmless}")
        said += [
            f"{_rows_are(one.allowed)} kept although {one.rule} finds them: the allow-list says so."
            for one in self.findings
            if one.allowed
        ]
        return said

    def _what_it_does(self, finding: Finding) -> str:
        """What a rule does to the rows that break it, or to the data as a whole."""
        if finding.severity == "warn":
            return "only reports them"
        if any(reason.startswith(f"{finding.rule}: ") for reason in self.reasons):
            return "BLOCKS the data"
        if finding.severity == "error" and not finding.rows:
            return "would block the data"
        return "sets them aside"

    def located(self, places: Mapping[str, Sequence[str]]) -> "Verdict":
        """The same verdict with the places of the first rows per rule."""
        findings = (replace(one, places=tuple(places.get(one.rule, ()))) for one in self.findings)
        return replace(self, findings=tuple(findings))


def _listed(finding: Finding) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(finding.kinds.items()))
    places = ", ".join([*finding.places, *filter(None, [finding.unlisted])])
    return escaped(f"{kinds}: {places}" if kinds else places)


def escaped(text: str) -> str:
    """The text on one line, escaped so that Markdown and HTML show it literally."""
    text = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    for character in "\\`*_[]|~":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def write(folder: Path, verdict: Verdict) -> None:
    """Writes verdict.json and report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    verdict_json = json.dumps(verdict.to_json(), ensure_ascii=False, indent=2)
    (folder / "verdict.json").write_text(verdict_json + "\n", encoding="utf-8")
    (folder / "report.md").write_text(verdict.to_markdown(), encoding="utf-8")


def write_quarantine(folder: Path, quarantined: Iterable[Quarantined]) -> None:
    """Writes quarantine.jsonl."""
    with (folder / "quarantine.jsonl").open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(compact_json(entry.to_row()) + "\n" for entry in quarantined)


def _rows_are(count: int) -> str:
    return f"{rows(count)} {'is' if count == 1 else 'are'}"


def rows(count: int) -> str:
    """A number of rows in words."""
    return "1 row" if count == 1 else f"{count:,} rows"


def largest(findings: Iterable[Finding], counted: NDArray[np.bool_]) -> str:
    """The rules that set aside most of the rows that count, each with their number.

    Args:
        findings: what all rules found; those that only warn are left out.
        counted: whether a row counts, (rows,).
    """
    found = {
        one.rule: int(counted[list(one.rows)].sum()) for one in findings if one.severity != "warn"
    }
    most = sorted(filter(found.get, found), key=lambda rule: -found[rule])[:MAX_RULES]
    return ", ".join(f"{rule} {found[rule]:,}" for rule in most)
