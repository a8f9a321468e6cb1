"""The gate: fresh preferences and earlier ones go in, what may train a reward model comes out.

Every row is accounted for: passed, set aside with its rule, or counted among the ties. A blocked
verdict is a result, not an exception: the caller looks at `passed`. Importing this module imports
Great Expectations (three seconds), so only the validate stage does; `ValidateParams` is in
`preferences.params`.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from preferences import report
from preferences.allowing import Allowed
from preferences.expectations import check
from preferences.judging import Judged
from preferences.measures import Candidate, measure, prompt_digest
from preferences.params import Severity, ValidateParams
from preferences.records import Preference, Prompt, Sourced, Split
from preferences.report import Counts, Finding, Quarantined, Verdict
from preferences.rules import RULES
from preferences.splitting import split_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What the gate let pass, what it set aside, and its verdict."""

    train: tuple[Preference, ...]
    """Earlier rows first, then fresh ones, in the order they came in."""
    heldout: tuple[Preference, ...]
    quarantined: tuple[Quarantined, ...]
    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether a reward model may be trained on it."""
        return self.verdict.passed

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is blocked, one sentence each; empty when passed."""
        return self.verdict.reasons


def run_gate(
    fresh: Judged,
    earlier: Sequence[Sourced],
    evaluation_prompts: Sequence[Prompt],
    params: ValidateParams,
    *,
    report_dir: Path,
    docs_dir: Path | None = None,
    allowed: Allowed = frozenset(),
) -> GateResult:
    """Splits, checks and reports; writes verdict.json, quarantine.jsonl and report.md.

    `earlier` rows keep their side. A fresh row takes the side of its prompt's earlier rows, else
    the one that `split_of` gives. `evaluation_prompts` are those that policies are measured on.
    `docs_dir` receives Great Expectations' HTML, whose file names hold the time; it shows what the
    rules found, also where an entry of `allowed` puts a row back.

    Raises:
        BrokenExpectationError: an expectation crashed.
    """
    candidates = _candidates(fresh.rows, earlier, params.heldout_fraction)
    found = _findings(candidates, evaluation_prompts, params, docs_dir)
    findings = [_less_allowed(finding, candidates, allowed) for finding in found]
    quarantined = _quarantined(candidates, findings)
    aside = {entry.row for entry in quarantined}
    passing = [entry for row, entry in enumerate(candidates) if row not in aside]
    rows = [candidate.preference for candidate in passing]
    counts = Counts(
        fresh=len(fresh.rows),
        earlier=len(earlier),
        train=sum(row.split == "train" for row in rows),
        heldout=sum(row.split == "heldout" for row in rows),
        fresh_passed=sum(candidate.fresh for candidate in passing),
        quarantined=len(quarantined),
        ties=fresh.ties,
        skipped=fresh.skipped,
        unjudged=fresh.unjudged,
    )
    assert counts.rows_in == counts.rows_out, f"a row was lost: {counts}"
    reasons = tuple(_reasons(counts, findings, params))
    verdict = Verdict(counts=counts, findings=tuple(findings), reasons=reasons)
    report.write(report_dir, verdict, quarantined)
    return GateResult(
        train=tuple(row for row in rows if row.split == "train"),
        heldout=tuple(row for row in rows if row.split == "heldout"),
        quarantined=tuple(quarantined),
        verdict=verdict,
    )


def _candidates(
    fresh: Sequence[Sourced], earlier: Sequence[Sourced], heldout_fraction: float
) -> list[Candidate]:
    sides: dict[int, Split] = {}
    for sourced in earlier:
        sides.setdefault(prompt_digest(sourced.preference.prompt), sourced.preference.split)
    candidates = [Candidate(sourced, fresh=False) for sourced in earlier]
    for sourced in fresh:
        prompt = sourced.preference.prompt
        side = sides.get(prompt_digest(prompt)) or split_of(
            prompt, heldout_fraction=heldout_fraction
        )
        preference = replace(sourced.preference, split=side)
        candidates.append(Candidate(Sourced(preference, sourced.where), fresh=True))
    return candidates


def _findings(
    candidates: Sequence[Candidate],
    evaluation_prompts: Sequence[Prompt],
    params: ValidateParams,
    docs: Path | None,
) -> list[Finding]:
    severities: Mapping[str, Severity] = asdict(params.severities)
    if not candidates:
        return [
            Finding(rule.name, severities[rule.name], ())
            for rule in RULES
            if severities[rule.name] != "off"
        ]
    evaluation: Collection[int] = {prompt_digest(prompt) for prompt in evaluation_prompts}
    near = severities["near_duplicates"] != "off"
    return check(measure(candidates, evaluation, near=near), severities, docs=docs)


def _less_allowed(finding: Finding, candidates: Sequence[Candidate], allowed: Allowed) -> Finding:
    kept = [
        row
        for row in finding.rows
        if (candidates[row].preference.pair_id, finding.rule) not in allowed
    ]
    return replace(finding, rows=tuple(kept), allowed=len(finding.rows) - len(kept))


def _quarantined(candidates: Sequence[Candidate], findings: Sequence[Finding]) -> list[Quarantined]:
    """Rows that a rule sets aside: what blocks is set aside too, so that it can be looked at."""
    broken: dict[int, list[str]] = defaultdict(list)
    for finding in findings:
        if finding.severity != "warn":
            for row in finding.rows:
                broken[row].append(finding.rule)
    return [
        Quarantined(
            row=row,
            rules=tuple(rules),
            origin="fresh" if candidates[row].fresh else "earlier",
            sourced=candidates[row].sourced,
        )
        for row, rules in sorted(broken.items())
    ]


def _reasons(counts: Counts, findings: Sequence[Finding], params: ValidateParams) -> list[str]:
    reasons = [
        f"{finding.rule}: {report.rows(len(finding.rows))} where {report.REASONS[finding.rule]}"
        for finding in findings
        if finding.severity == "error" and finding.rows
    ]
    if not counts.fresh:
        reasons.append("no rows: there is no fresh preference")
    elif counts.fresh_passed < params.min_rows:
        reasons.append(
            f"min_rows: {counts.fresh_passed:,} fresh preferences pass, {params.min_rows:,} needed"
        )
    aside = counts.fresh - counts.fresh_passed
    if counts.fresh and aside / counts.fresh > params.max_quarantined_fraction:
        reasons.append(
            f"max_quarantined_fraction: {aside:,} of {counts.fresh:,} fresh preferences set aside, "
            f"more than {params.max_quarantined_fraction:.0%}"
        )
    if not counts.train:
        reasons.append("no rows: nothing is left to train on")
    if params.heldout_fraction and not counts.heldout:
        reasons.append("no rows: nothing is left to measure a reward model on (held out)")
    return reasons
