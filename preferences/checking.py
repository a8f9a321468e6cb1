"""Runs pairs of any format through the gate, for `python -m preferences check`.

Importing this module imports Great Expectations, so the command does so only after the source has
been read without errors.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preferences.allowing import Allowed
from preferences.baselines import bag_of_words
from preferences.data_docs import add_places
from preferences.gate import Round, Undecided, decide
from preferences.grouped_shares import longer_wins
from preferences.measures import Measured, digest
from preferences.overview import longer_share
from preferences.params import ValidateParams
from preferences.places import Places
from preferences.records import Preference, compact_json
from preferences.report import DOCS, FILES, Quarantined, Verdict, escaped, write
from preferences.schemas import shown
from preferences.settling import Settled
from preferences.statistics import first_votes, fleiss_kappa, krippendorff_alpha
from preferences.statistics import weak_annotators as weak

BASELINE_ROWS = 50_000
"""Most rows that the bag of words is fitted on; larger data are sampled by the pair's hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on a data set, and its statistics."""

    verdict: Verdict
    statistics: dict[str, Any]
    without_pair: int
    """Entries of the allow-list that match no pair."""


def check_measured(
    rows: Settled,
    measured: Measured,
    *,
    allowed: Allowed,
    report_dir: Path,
    params: ValidateParams,
) -> Checked:
    """Checks and reports; writes the gate's files, the cleaned data and statistics.json.

    `measured` are the measures of `rows`, which are read again to be written. All files appear in
    `report_dir` together at the end, once the data can cause no more errors.
    """
    report_dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=report_dir, prefix=".new-") as staging:
            checked = _check(rows, measured, allowed, Path(staging), params)
            for name in FILES:
                target = report_dir / name
                if target.is_symlink():
                    target.unlink()
                elif target.is_dir():
                    shutil.rmtree(target)
                (Path(staging) / name).replace(target)
    except BaseException:
        with suppress(OSError):
            report_dir.rmdir()  # Succeeds only on an empty folder.
        raise
    return checked


def _check(
    rows: Settled, measured: Measured, allowed: Allowed, folder: Path, params: ValidateParams
) -> Checked:
    unsettled, votes = rows.unsettled, rows.votes
    decision = decide(
        measured,
        Undecided(ties=unsettled.ties, skipped=unsettled.skipped),
        params,
        context=Round(votes=votes, allowed=allowed),
        docs=folder / DOCS,
    )
    total = len(measured.table)
    with (folder / "warned.jsonl").open("w", encoding="utf-8", newline="") as stream:
        places = Places(stream)
        train, heldout = _write_rows(folder, decision.apply(rows, places), total)
    verdict = decision.verdict.located(places.first)
    write(folder, verdict)
    add_places(folder / DOCS, verdict.findings)
    shares = {
        "longer wins": longer_share(measured.table),
        "longer wins, held out": longer_wins(heldout),
        "bag of words, held out": bag_of_words(train, heldout),
        "response shown first wins": votes.first_wins(),
    }
    numbers: dict[str, Any] = {name: each.to_json() for name, each in shares.items() if each}
    if votes.units:
        first = first_votes(votes.units)
        numbers["krippendorff alpha"] = krippendorff_alpha(first)
        numbers["fleiss kappa"] = fleiss_kappa(first)
        numbers["weak annotators"] = weak(votes.units)
    malformed = {"malformed rows set aside": rows.malformed} if rows.malformed else {}
    text = json.dumps(numbers | malformed, ensure_ascii=False, indent=2) + "\n"
    (folder / "statistics.json").write_text(text, encoding="utf-8")
    with (folder / "report.md").open("a", encoding="utf-8") as stream:
        stream.write(_to_markdown(numbers, rows.malformed))
    known = set(measured.table["pair"])
    return Checked(
        verdict=verdict,
        statistics=numbers,
        without_pair=sum(digest(pair) not in known for pair, _ in allowed),
    )


def _write_rows(
    folder: Path, rows: Iterator[Quarantined | Preference], total: int
) -> tuple[list[Preference], list[Preference]]:
    """Writes train.jsonl, heldout.jsonl and quarantine.jsonl; returns rows for the baselines.

    Raises:
        MalformedDataError: the data changed since the decision on them.
    """
    kept: dict[str, list[Preference]] = {"train": [], "heldout": []}
    share = min(1.0, BASELINE_ROWS / max(1, total))
    with ExitStack() as stack:
        streams = {
            name: stack.enter_context(
                (folder / f"{name}.jsonl").open("w", encoding="utf-8", newline="")
            )
            for name in ("quarantine", *kept)
        }
        for row in rows:
            name = "quarantine" if isinstance(row, Quarantined) else row.split
            streams[name].write(compact_json(row.to_row()) + "\n")
            if isinstance(row, Quarantined) or row.is_tie:
                continue
            if share == 1 or digest(row.pair_id) / 2**64 + 0.5 < share:
                kept[row.split].append(row)
    return kept["train"], kept["heldout"]


def lines_of(numbers: dict[str, Any]) -> list[str]:
    """The statistics as text, one per line."""
    lines = []
    for name, value in numbers.items():
        if isinstance(value, dict):
            text = "{mean:.3f} (95 % {low:.3f} to {high:.3f}, n {n:,})".format(**value)
        elif isinstance(value, list):
            text = ", ".join(map(shown, value)) or "none"
        else:
            text = "undefined" if value is None else f"{value:.3f}"
        lines.append(f"{name}: {text}")
    return lines


def _to_markdown(numbers: dict[str, Any], malformed: list[str]) -> str:
    lines = lines_of(numbers) + [f"malformed, set aside: {row}" for row in malformed]
    return "\n".join(["", *(f"- {escaped(line)}" for line in lines), ""])
