"""`reports/run.html`: what changes from run to run and so does not belong in the report itself.

The report is an output of DVC: every run on the same inputs makes the same bytes. Commit, times,
machine and links are on this page beside it; `make repro` and the flow rewrite it every time.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks.reporting.result_table import duration, earlier_words
from tasks.tracking.links import mlflow_runs, mlflow_ui, run_link
from tasks.workspace.execution import Execution

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>RLHF Rounds: {name}</title>
<style>
body {{ max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }}
body {{ font: 16px/1.55 system-ui, sans-serif; }}
th {{ text-align: left; vertical-align: top; padding: .3rem 2rem .3rem 0; white-space: nowrap; }}
td {{ padding: .3rem 0; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{name}</h1>
<p>The last run of <code>make repro</code> or of the flow in this workspace. {results}</p>
<table>
{rows}
</table>
</body>
</html>
"""
SUMMARY = '<a href="summary.json">summary.json</a>'
REPORTED = f"""\
The results are in <a href="index.html">the report</a>, the numbers in
<a href="results.json">results.json</a> and, with times and memory, in {SUMMARY}."""
UNREPORTED = f"It has not come to its report; what it has measured is in {SUMMARY}."
EARLIER = f"""\
{UNREPORTED} <a href="index.html">The report</a> and <a href="results.json">results.json</a> that
lie here are of an earlier run."""


def write_run_page(
    workspace: Path,
    name: str,
    summary: Mapping[str, Any],
    execution: Execution | None,
    *,
    reported: bool,
) -> None:
    """Write the page from the summary of the last execution.

    Args:
        workspace: the page goes into its `reports/`.
        name: of the execution (`tasks.tracking.run_names.run_name`).
        summary: from `tasks.reporting.summary.build_summary`.
        execution: the last one; None where only `dvc repro` itself has run here.
        reported: whether the report is of this run.
    """
    machine = summary["machine"]
    rows = {
        "Commit": _link(commit_link(workspace, summary["commit"]), summary["commit"]),
        "Seed": Markup("{}").format(summary["seed"]),
        "Time": _times(summary["seconds"]),
        "Machine": Markup("{}, {} threads").format(
            ", ".join([*machine.get("gpus", []), machine["cpu"]]), machine["threads"]
        ),
    }
    if execution is not None:
        rows |= {
            "Execution": Markup("<code>{}</code>").format(execution.id),
            "MLflow": _mlflow(workspace, execution.id),
        }
    lines = [Markup("<tr><th>{}</th><td>{}</td></tr>").format(*row) for row in rows.items()]
    earlier = (workspace / "reports" / "index.html").is_file()
    results = Markup(REPORTED if reported else EARLIER if earlier else UNREPORTED)
    page = Markup(PAGE).format(name=name, results=results, rows=Markup("\n").join(lines))
    (workspace / "reports" / "run.html").write_text(page, encoding="utf-8")


def commit_link(workspace: Path, commit: str) -> str | None:
    """The commit's page on the server of `origin`, None where `origin` is not a server."""
    command = ["git", "-C", str(workspace), "remote", "get-url", "origin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    remote = done.stdout.strip().removesuffix(".git")
    found = re.fullmatch(r"(?:https://|ssh://)(?:[^@/]*@)?([^/]+/.+)", remote)
    if found is None and (scp := re.fullmatch(r"[^@/]+@([^:/]+):(.+)", remote)):
        return f"https://{scp[1]}/{scp[2]}/commit/{commit}"
    return f"https://{found[1]}/commit/{commit}" if found and commit else None


def _times(seconds: Mapping[str, Any]) -> Markup:
    stages = sorted(seconds["stages"].items(), key=lambda item: -item[1])
    parts = ", ".join(f"{stage} {duration(took)}" for stage, took in stages)
    earlier = seconds.get("earlier")
    return Markup("{}{}{}").format(
        duration(seconds["total"]),
        f": {parts}" if parts else "",
        f"; {earlier_words(seconds['total'], earlier)}" if earlier else "",
    )


def _mlflow(workspace: Path, execution: str) -> Markup:
    """The runs of the stages, as links where the address of MLflow's page is known."""
    address = mlflow_ui(workspace)
    runs = [
        Markup("{} {}").format(stage, _link(address and run_link(address, run), run))
        for stage, run in mlflow_runs(workspace, execution).items()
    ]
    if not runs:
        return Markup("<code>make ui</code> shows what has arrived there.")
    lead = Markup("") if address else Markup("<code>make ui</code> shows these runs.<br>")
    return lead + Markup("<br>").join(runs)


def _link(address: str | None, text: str) -> Markup:
    shown = Markup("<code>{}</code>").format(text)
    return Markup('<a href="{}">{}</a>').format(address, shown) if address else shown
