"""Pairs of any format through the gate, as `python -m preferences check` does it.

The source is read twice, once to inspect it and once to write what passed and what did not, so that
a file may be larger than memory. Great Expectations is imported in between: it takes three seconds,
which damaged data need not wait for.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preferences.allowing import Allowed
from preferences.baselines import bag_of_words
from preferences.formats.reading import Source
from preferences.formats.writing import Unsettled
from preferences.intake import inspect, on_its_side
from preferences.measures import Candidate, digest
from preferences.overview import longer_share
from preferences.params import ValidateParams
from preferences.records import Preference, Prompt, Voted, compact_json
from preferences.report import Verdict, escaped, write
from preferences.statistics import Votes, fleiss_kappa, krippendorff_alpha, longer_wins
from preferences.statistics import weak_annotators as weak
from preferences.tokens import TokenLimit

STRICT = ValidateParams()
"""What `check` asks of a file: the defaults of params.yaml."""
BASELINE_ROWS = 50_000
"""Most rows that the bag of words is fitted on; of more data, a sample by the hash of the pair."""


class Settled:
    """The preferences of a source with their sides; each pass counts anew what gave none."""

    def __init__(self, source: Source, heldout_fraction: float):
        """Reads nothing yet."""
        self._source = source
        self._heldout_fraction = heldout_fraction
        self.unsettled = Unsettled()
        self.votes = Votes()

    def __iter__(self) -> Iterator[Candidate]:
        """All preferences in the order of the source.

        Raises:
            MalformedDataError: at the end, if anything was wrong.
            JudgmentMismatchError: votes are not about the pair that they stand beside.
        """
        self.unsettled, self.votes = Unsettled(), Votes()
        for sourced in self.unsettled.settle(self._counted()):
            yield on_its_side(sourced, self._heldout_fraction)

    def _counted(self) -> Iterator[Any]:
        for item in self._source:
            if isinstance(item, Voted):
                self.votes.add(item.comparison, item.judgments)
            yield item


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on some data, and numbers about the data as a whole."""

    verdict: Verdict
    statistics: dict[str, Any]


def check_source(
    source: Source,
    *,
    evaluation_prompts: Sequence[Prompt],
    allowed: Allowed,
    report_dir: Path,
    params: ValidateParams = STRICT,
    tokens: TokenLimit | None = None,
) -> Checked:
    """Checks and reports; writes the gate's files, the cleaned data and statistics.json.

    Raises:
        MalformedDataError: the source cannot be read; nothing was written.
        JudgmentMismatchError: votes are not about the pair that they stand beside.
    """
    rows = Settled(source, params.heldout_fraction)
    measured = inspect(rows, evaluation_prompts, params, tokens)
    from preferences.gate import Round, Undecided, decide  # noqa: PLC0415

    undecided = Undecided(ties=rows.unsettled.ties, skipped=rows.unsettled.skipped)
    votes = rows.votes
    decision = decide(
        measured,
        undecided,
        params,
        context=Round(votes=votes, allowed=allowed),
        docs=report_dir / "data_docs",
    )
    write(report_dir, decision.verdict, decision.quarantined(rows))
    train, heldout = _write_passed(report_dir, decision.passed(rows), len(measured.table))
    shares = {
        "longer wins": longer_share(measured.table),
        "longer wins, held out": longer_wins(heldout),
        "bag of words, held out": bag_of_words(train, heldout),
        "answer shown first wins": votes.first_wins(),
    }
    numbers: dict[str, Any] = {name: each.to_json() for name, each in shares.items() if each}
    if votes.units:
        numbers["krippendorff alpha"] = krippendorff_alpha(votes.units)
        numbers["fleiss kappa"] = fleiss_kappa(votes.units)
        numbers["weak annotators"] = weak(votes.units)
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    (report_dir / "statistics.json").write_text(text, encoding="utf-8")
    with (report_dir / "report.md").open("a", encoding="utf-8") as stream:
        stream.write(_to_markdown(numbers))
    return Checked(verdict=decision.verdict, statistics=numbers)


def _write_passed(
    folder: Path, passed: Iterator[Preference], total: int
) -> tuple[list[Preference], list[Preference]]:
    """Writes train.jsonl and heldout.jsonl; returns the rows for the baselines."""
    kept: dict[str, list[Preference]] = {"train": [], "heldout": []}
    share = min(1.0, BASELINE_ROWS / max(1, total))
    with ExitStack() as stack:
        streams = {
            split: stack.enter_context(
                (folder / f"{split}.jsonl").open("w", encoding="utf-8", newline="")
            )
            for split in kept
        }
        for row in passed:
            streams[row.split].write(compact_json(row.to_row()) + "\n")
            if not row.is_tie and (share == 1 or digest(row.pair_id) / 2**64 + 0.5 < share):
                kept[row.split].append(row)
    return kept["train"], kept["heldout"]


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
