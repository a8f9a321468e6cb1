"""The stage `report`: the numbers of all rounds in `results.json`, a page and `metrics/`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tasks.params.changed import ChangedParam, changed_params
from tasks.params.loading import RoundParams
from tasks.reporting.annotators import read_annotators, read_formed
from tasks.reporting.data import (
    read_curves,
    read_labels,
    read_lineage,
    read_losses,
    read_reliability,
    read_samples,
    read_verdicts,
)
from tasks.reporting.descent import formed_in, started_elsewhere, trained_in
from tasks.reporting.headline import write_headline
from tasks.reporting.page import ReportData, render_page
from tasks.reporting.summary import build_results
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.tracking.spool import Output

INPUTS = ("results", "models", "data/rounds")


def run(stage: Stage) -> None:
    """Write the report on what all stages have measured."""
    page = stage.staging.file("reports/index.html")
    numbers = stage.staging.file("reports/results.json")
    files = stage.params.prepare.files
    results = build_report(
        stage.root,
        stage.params.rounds,
        stage.params.final,
        page.parent,
        seed=stage.params.run.seed,
        samples=stage.params.report.samples,
        start_sft=stage.params.ppo.start_sft,
        # The number of threads changes no result, so not this one either.
        files={} if files is None else asdict(files),
        changed=[change for change in changed_params(stage.params) if change.key != "run.threads"],
    )
    write_headline(stage.staging.directory("metrics"), results)
    stage.keep(*(Output("artifact", Path("reports") / path.name) for path in (page, numbers)))


def build_report(  # noqa: PLR0913 - what the page is made from
    root: Path,
    rounds: Mapping[str, RoundParams],
    final: str,
    out: Path,
    *,
    seed: int,
    samples: int = 12,
    start_sft: float = 0.0,
    files: Mapping[str, str | None] = MappingProxyType({}),
    changed: Sequence[ChangedParam] = (),
) -> dict[str, Any]:
    """Write `results.json` and `index.html` into the folder `out`; return the results.

    Rounds that have not run yet are omitted; the same files give the same bytes.

    Args:
        root: the workspace, with `results/`, `models/` and `data/`.
        rounds: all rounds by key, in their order.
        final: the round whose policy is shown and was tested.
        out: an existing folder.
        seed: of the run.
        samples: how many held-out prompts are shown with their responses.
        start_sft: `ppo.start_sft`.
        files: `prepare.files`, by name; empty for the embedded support desk.
        changed: the parameters that differ from the defaults of the code.

    Raises:
        ParamsError: `final` is not one of the rounds.
        MetricsError: a metrics file is not a JSON object.
    """
    keys, formed_by = list(rounds), formed_in(rounds, final)
    elsewhere = started_elsewhere(rounds, start_sft)
    results = build_results(root, keys, seed=seed, test_policy=final, started_elsewhere=elsewhere)
    shown, total = read_samples(root, final, samples)
    annotators = read_annotators(root, formed_by)
    page = render_page(
        ReportData(
            results=results,
            changed=changed,
            final=final,
            trained_in=trained_in(rounds, final, start_sft),
            curves=read_curves(root, keys),
            losses=read_losses(root, keys),
            verdicts=read_verdicts(root, keys),
            reliability=read_reliability(root, keys),
            samples=shown,
            samples_total=total,
            lineage=read_lineage(root, keys),
            annotators=annotators,
            formed=read_formed(root, formed_by, files, annotators),
            labels=read_labels(root, keys),
        )
    )
    text = json.dumps(results, ensure_ascii=False, indent=1) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    (out / "index.html").write_text(page, encoding="utf-8")
    return results


if __name__ == "__main__":
    sys.exit(run_stage("report", run, inputs=INPUTS))
