"""The stage `report`: the numbers of all rounds in `results.json`, a page and `metrics/`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tasks.params.changed import ChangedParam, changed_params
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
        list(stage.params.rounds),
        stage.params.final,
        page.parent,
        seed=stage.params.run.seed,
        samples=stage.params.report.samples,
        # The number of threads changes no result, so not this one either.
        files={} if files is None else asdict(files),
        changed=[change for change in changed_params(stage.params) if change.key != "run.threads"],
    )
    write_headline(stage.staging.directory("metrics"), results)
    stage.keep(*(Output("artifact", Path("reports") / path.name) for path in (page, numbers)))


def build_report(  # noqa: PLR0913 - what the page is made from
    root: Path,
    rounds: Sequence[str],
    final: str,
    out: Path,
    *,
    seed: int,
    samples: int = 12,
    files: Mapping[str, str | None] = MappingProxyType({}),
    changed: Sequence[ChangedParam] = (),
) -> dict[str, Any]:
    """Write `results.json` and `index.html` into the folder `out`; return the results.

    Rounds that have not run yet are omitted; the same files give the same bytes.

    Args:
        root: the workspace, with `results/`, `models/` and `data/`.
        rounds: keys of all rounds, in their order.
        final: the round whose policy is shown and was tested.
        out: an existing folder.
        seed: of the run.
        samples: how many held-out prompts are shown with their responses.
        files: `prepare.files`, by name; empty for the embedded support desk.
        changed: the parameters that differ from the defaults of the code.

    Raises:
        MetricsError: a metrics file is not a JSON object.
    """
    results = build_results(root, rounds, seed=seed, test_policy=final)
    shown, total = read_samples(root, final, samples)
    until_final = [*takewhile(lambda key: key != final, rounds), final]
    annotators = read_annotators(root, until_final)
    page = render_page(
        ReportData(
            results=results,
            changed=changed,
            final=final,
            curves=read_curves(root, rounds),
            losses=read_losses(root, rounds),
            verdicts=read_verdicts(root, rounds),
            reliability=read_reliability(root, rounds),
            samples=shown,
            samples_total=total,
            lineage=read_lineage(root, rounds),
            annotators=annotators,
            formed=read_formed(root, until_final, files, annotators),
            labels=read_labels(root, rounds),
        )
    )
    text = json.dumps(results, ensure_ascii=False, indent=1) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    (out / "index.html").write_text(page, encoding="utf-8")
    return results


if __name__ == "__main__":
    sys.exit(run_stage("report", run, inputs=INPUTS))
