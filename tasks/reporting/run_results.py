"""The results of a workspace as they are now, and its `reports/summary.json`."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tasks.params.loading import Params
from tasks.reporting.descent import started_elsewhere
from tasks.reporting.run_page import write_run_page
from tasks.reporting.summary import (
    Machine,
    build_results,
    build_summary,
    cpu_name,
    read_outcomes,
)
from tasks.reporting.unfinished import without
from tasks.tracking.run_names import run_name
from tasks.workspace.execution import last_execution
from tasks.workspace.files import git_commit, write_json
from tasks.workspace.stage_order import round_of


def read_results(workspace: Path, params: Params) -> dict[str, Any]:
    """The results of all rounds so far."""
    return build_results(
        workspace,
        list(params.rounds),
        seed=params.run.seed,
        test_policy=params.final,
        started_elsewhere=started_elsewhere(params.rounds, params.ppo.start_sft),
    )


def write_summary(
    workspace: Path, params: Params, *, whole: bool, unfinished: Collection[str]
) -> dict[str, Any]:
    """Write `reports/summary.json` and the page of the run; return the summary.

    Unless all stages are up to date, the `whole` of them, what earlier executions did is left out:
    some of it is no part of these results. So is what `unfinished` stages have left there.
    """
    results = without(read_results(workspace, params), unfinished)
    execution = last_execution(workspace)
    ran = None if execution is None else execution.id
    summary = build_summary(
        results,
        commit=git_commit(workspace),
        machine=Machine(cpu=cpu_name(), threads=params.run.threads),
        total_seconds=execution.seconds if execution else 0.0,
        execution=ran,
        outcomes=[
            outcome
            for outcome in read_outcomes(workspace)
            if round_of(outcome["stage"]) in (None, *params.rounds)
            and (whole or outcome["execution"] == ran)
        ],
    )
    (workspace / "reports").mkdir(exist_ok=True)
    write_json(workspace / "reports" / "summary.json", summary)
    name, reported = run_name(workspace, params), "report" not in unfinished
    write_run_page(workspace, name, summary, execution, reported=reported)
    return summary
