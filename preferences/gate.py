"""The gate: validates fresh and earlier preferences before reward-model training.

Every row is accounted for: passed, quarantined with its rule, or counted among the ties. A blocked
verdict is a result, not an exception: the caller looks at `passed`. The rows are read twice, first
to measure them and then to route them, so that only their digests are in memory.

Importing this module imports Great Expectations (three seconds), so only the validate stage and
`check` do; `ValidateParams` is in `preferences.params`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from preferences import report
from preferences.allowing import Allowed
from preferences.data_docs import add_places
from preferences.expectations import check
from preferences.intake import candidates_of, inspect
from preferences.judging import Judged
from preferences.measures import Candidate, Measured, digest
from preferences.overview import Number, numbers_of
from preferences.params import ValidateParams
from preferences.places import Places
from preferences.records import Preference, Prompt, Sourced
from preferences.report import Counts, Finding, Origin, Quarantined, Verdict
from preferences.statistics import Votes
from preferences.tokens import TokenLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Comparisons that gave no preference."""

    ties: int = 0
    skipped: int = 0
    unjudged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict, and what it means for each row."""

    verdict: Verdict
    aside: Mapping[int, tuple[str, ...]]
    """Index of a quarantined row -> the rules it breaks."""
    warned: Mapping[int, tuple[str, ...]]
    """Index of a row -> the rules that warn of it."""

    def apply(
        self, candidates: Iterable[Candidate], places: Places
    ) -> Iterator[Quarantined | Preference]:
        """What becomes of each candidate, in input order; the same candidates as were measured.

        The places of those that a rule found are added to `places`.
        """
        for row, candidate in enumerate(candidates):
            aside, warned = self.aside.get(row, ()), self.warned.get(row, ())
            origin: Origin = "fresh" if candidate.fresh else "earlier"
            if aside or warned:
                places.add(candidate.sourced, origin, aside, warned)
            if aside:
                yield Quarantined(rules=aside, origin=origin, sourced=candidate.sourced)
            else:
                yield candidate.preference


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What passed the gate, what it quarantined, and its verdict."""

    train: tuple[Preference, ...]
    """Earlier rows first, then fresh ones, in input order."""
    heldout: tuple[Preference, ...]
    quarantined: tuple[Quarantined, ...]
    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether a reward model may be trained on the data."""
        return self.verdict.passed

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the data are blocked, one sentence each; empty if they passed."""
        return self.verdict.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What is known of the round besides its preferences."""

    votes: Votes = field(default_factory=Votes)
    tokens: TokenLimit | None = None
    allowed: Allowed = frozenset()
    human_labels: int = 0
    """Fewest fresh pairs that people must have judged."""
    unlabelled: bool = False
    """Nobody was asked: the earlier preferences are all there is, and what is required of fresh
    ones is required of them. None at all are fine: then no reward model is to be trained."""


def run_gate(
    fresh: Judged,
    earlier: Sequence[Sourced],
    evaluation_prompts: Sequence[Prompt],
    params: ValidateParams,
    *,
    report_dir: Path,
    docs_dir: Path | None = None,
    context: Round | None = None,
) -> GateResult:
    """Splits, checks and reports; writes verdict.json, quarantine.jsonl and report.md.

    With `params.ties` drop, ties among all rows are left out and counted, whatever form they had.
    `earlier` rows keep their side. A fresh row takes the side of earlier rows with its prompt, or
    else the one from `split_of`. `evaluation_prompts` are those that policies are evaluated on.

    Raises:
        BrokenExpectationError: an expectation crashed.
    """
    context = context or Round()
    keep_ties = params.ties == "half"
    rows_in = [*earlier, *fresh.rows]
    ties = 0 if keep_ties else sum(each.preference.is_tie for each in rows_in)
    known, new = (
        [each for each in side if keep_ties or not each.preference.is_tie]
        for side in (earlier, fresh.rows)
    )
    candidates = candidates_of(new, known, params.heldout_fraction)
    undecided = Undecided(ties=fresh.ties + ties, skipped=fresh.skipped, unjudged=fresh.unjudged)
    measured = inspect(candidates, evaluation_prompts, params, context.tokens)
    decision = decide(measured, undecided, params, context=context, docs=docs_dir)
    rows: list[Preference] = []
    quarantined: list[Quarantined] = []
    report_dir.mkdir(parents=True, exist_ok=True)
    with (report_dir / "warned.jsonl").open("w", encoding="utf-8", newline="") as stream:
        places = Places(stream)
        for entry in decision.apply(candidates, places):
            if isinstance(entry, Quarantined):
                quarantined.append(entry)
            else:
                rows.append(entry)
    verdict = decision.verdict.located(places.first)
    report.write(report_dir, verdict)
    report.write_quarantine(report_dir, quarantined)
    if docs_dir is not None:
        add_places(docs_dir, verdict.findings)
    return GateResult(
        train=tuple(row for row in rows if row.split == "train"),
        heldout=tuple(row for row in rows if row.split == "heldout"),
        quarantined=tuple(quarantined),
        verdict=verdict,
    )


def decide(
    measured: Measured,
    undecided: Undecided,
    params: ValidateParams,
    *,
    context: Round,
    docs: Path | None = None,
) -> Decision:
    """The verdict on inspected data; Great Expectations' report goes to the folder `docs`.

    The report shows everything the rules found, even where the allow-list exempts a row.

    Raises:
        BrokenExpectationError: an expectation crashed.
    """
    table = measured.table
    bounds, unlabelled = params.bounds, context.unlabelled
    numbers = numbers_of(measured, context.votes, bounds, unlabelled=unlabelled)
    found = check(table, params, numbers, docs=docs)
    pairs = table["pair"].to_numpy(dtype=np.int64)
    put_back = {(digest(pair), rule) for pair, rule in context.allowed}
    findings = [
        replace(one, kinds=measured.personal) if one.rule == "personal_data" else one
        for one in (_less_allowed(finding, pairs, put_back) for finding in found)
    ]
    aside = _broken(one for one in findings if one.severity != "warn")
    passing = np.ones(len(table), dtype=np.bool_)
    passing[list(aside)] = False
    fresh = table["fresh"].to_numpy(dtype=np.bool_)
    heldout = table["heldout"].to_numpy(dtype=np.bool_)
    counts = Counts(
        fresh=int(fresh.sum()),
        earlier=int((~fresh).sum()),
        train=int((passing & ~heldout).sum()),
        heldout=int((passing & heldout).sum()),
        fresh_passed=int((passing & fresh).sum()),
        quarantined=len(aside),
        ties=undecided.ties,
        skipped=undecided.skipped,
        unjudged=undecided.unjudged,
    )
    assert counts.rows_in == counts.rows_out, f"a row was lost: {counts}"
    reasons = [
        *_reasons(counts, findings, params, fresh=fresh, unlabelled=unlabelled),
        *_out_of_bounds(numbers),
        *_missing_people(context),
    ]
    verdict = Verdict(
        counts=counts, findings=tuple(findings), numbers=tuple(numbers), reasons=tuple(reasons)
    )
    warned = _broken(one for one in findings if one.severity == "warn")
    return Decision(verdict=verdict, aside=aside, warned=warned)


def _less_allowed(
    finding: Finding,
    pairs: NDArray[np.int64],
    put_back: set[tuple[int, str]],
) -> Finding:
    if not put_back or not finding.rows:
        return finding
    kept = tuple(row for row in finding.rows if (int(pairs[row]), finding.rule) not in put_back)
    return replace(finding, rows=kept, allowed=len(finding.rows) - len(kept))


def _broken(findings: Iterable[Finding]) -> dict[int, tuple[str, ...]]:
    """Row -> the rules that found it; blocking rows are included, so that they can be reviewed."""
    broken: dict[int, list[str]] = defaultdict(list)
    for finding in findings:
        for row in finding.rows:
            broken[row].append(finding.rule)
    return {row: tuple(broken[row]) for row in sorted(broken)}


def _reasons(
    counts: Counts,
    findings: Sequence[Finding],
    params: ValidateParams,
    *,
    fresh: NDArray[np.bool_],
    unlabelled: bool,
) -> Iterator[str]:
    total = counts.fresh + counts.earlier
    for finding in findings:
        limit = params.limit(finding.rule)
        rows = len(finding.rows)
        # Divided, not multiplied: 29 / 100 is 0.29, and 0.29 * 100 is less than 29.
        if finding.severity != "warn" and rows and rows / total > limit:
            more = f", more than {limit:.2%} of {total:,}" if limit else ""
            yield (
                f"{finding.rule}: {report.rows(rows)} where {report.REASONS[finding.rule]}{more}"
            )
    if unlabelled and not total:
        return
    rules = report.largest(findings, np.ones_like(fresh) if unlabelled else fresh)
    yield from _too_few(counts, params, rules, unlabelled=unlabelled)
    if not counts.train:
        yield "no rows: nothing is left to train on"
    if params.heldout_fraction and not counts.heldout:
        yield "no rows: no held-out row is left to evaluate a reward model on"


def _too_few(
    counts: Counts, params: ValidateParams, rules: str, *, unlabelled: bool
) -> Iterator[str]:
    """What is wrong with the number of preferences that passed, or with that of those set aside."""
    kind, rows, passed = "fresh", counts.fresh, counts.fresh_passed
    if unlabelled:
        kind, rows, passed = "initial", counts.fresh + counts.earlier, counts.train + counts.heldout
    if not rows:
        yield f"no rows: there are no {kind} preferences"
    elif passed < params.min_rows:
        yield f"min_rows: {passed:,} {kind} preferences passed, {params.min_rows:,} required"
    aside = rows - passed
    if rows and aside / rows > params.max_quarantined_fraction:
        yield (
            f"max_quarantined_fraction: {aside:,} of {rows:,} {kind} preferences "
            f"quarantined, more than {params.max_quarantined_fraction:.0%} ({rules})"
        )


def _out_of_bounds(numbers: Sequence[Number]) -> Iterator[str]:
    for number in numbers:
        if number.bound.severity == "error" and not number.kept:
            yield f"{number.name}: {number.sentence()}"


def _missing_people(context: Round) -> Iterator[str]:
    judged, asked = context.votes.human_pairs, context.human_labels
    if judged < asked:
        yield f"human_labels: people judged {judged:,} fresh pairs, the round requires {asked:,}"
